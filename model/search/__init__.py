"""Search: from the ids of sources to the ids of translations, by a network made ready for it."""
