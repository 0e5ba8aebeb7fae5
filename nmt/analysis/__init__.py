"""Measures, alignments, filters, figures and a report of what attention does."""
