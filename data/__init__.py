"""Text to ids to batches: corpora, tokenizer, batching, and the built-in corpus. Imports no torch."""
