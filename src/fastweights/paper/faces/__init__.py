"""Facial expressions: Table 3."""
