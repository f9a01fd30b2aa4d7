"""`python -m fastweights`: what is installed, and what computes it."""

import torch

import fastweights

print(f"fastweights {fastweights.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
print(fastweights.backend())
