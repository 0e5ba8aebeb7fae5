"""Text to words, subwords, token ids and batches."""
