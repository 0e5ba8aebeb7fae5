"""Looking inside: what attention does."""
