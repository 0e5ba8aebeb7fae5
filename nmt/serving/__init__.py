"""The REST service: requests to batches, worker processes, limits and keys, and the web page."""
