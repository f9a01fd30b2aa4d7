"""One folder per experiment of the paper: what to train, with which recipe, and the paper's own numbers."""
