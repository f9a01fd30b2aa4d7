"""Reads what was measured; writes tables, plots and pages. Trains nothing."""
