"""The Transformer: attention, layers, cache, observers."""
