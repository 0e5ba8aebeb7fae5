"""Numerics with several implementations: an operation per file, chosen in backend.py."""
