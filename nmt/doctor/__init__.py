"""Examines an installation: what is there, what runs, whether it works."""
