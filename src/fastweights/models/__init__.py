"""Recurrent cores to compare: other ways to remember, called alike."""
