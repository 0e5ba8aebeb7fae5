"""Numerics with several implementations, chosen in one table."""
