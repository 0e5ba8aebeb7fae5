"""Text, subwords, prepared data and batches."""
