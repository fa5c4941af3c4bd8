"""Text to ids to batches: corpora, tokenizer, batching, built-in corpus. Imports no torch."""
