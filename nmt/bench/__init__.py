"""Benchmarks: one module each, run by nmt-bench."""
