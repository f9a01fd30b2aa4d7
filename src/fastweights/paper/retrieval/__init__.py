"""Associative retrieval: Table 1, and what the paper says in words."""
