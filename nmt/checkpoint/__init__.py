"""Verified, atomic model directories."""
