"""Faces that show an expression: rendered ones, Multi-PIE's and FER's, as sets of one kind."""
