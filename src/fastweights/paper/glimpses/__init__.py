"""Images by glimpses: Table 2, and its ablations."""
