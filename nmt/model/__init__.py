"""The Transformer and its attention kinds."""
