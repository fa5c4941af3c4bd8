"""Text to ids to batches: corpora, tokenizer, batching, the built-in corpus. Imports no torch."""
