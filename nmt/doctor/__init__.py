"""Examines an installation: what is there, which implementations run, whether they compute."""
