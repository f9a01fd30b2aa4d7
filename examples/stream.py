"""A stream that forgets nothing: a sequence read in pieces, with the state carried, equals the sequence read whole.

python examples/stream.py
"""

import torch
from safetensors.torch import load, save

from fastweights import FastWeights, FastWeightsState

torch.manual_seed(0)
layer = FastWeights(input_size=8, hidden_size=32, decay=0.99).eval()
signal = torch.randn(1000, 1, 8)

with torch.no_grad():
    whole, end = layer(signal)

    # In pieces of uneven size, as they come in; between two of them the state goes to disk and back.
    pieces, state = [], FastWeightsState(torch.zeros(1, 1, 32), torch.zeros(1, 1, 32, 32))
    for piece in signal.split([1, 99, 400, 7, 493]):
        output, state = layer(piece, state)
        pieces.append(output)
        state = FastWeightsState(**load(save(state.tensors())))

    # The same with the memory thrown away at every piece: what most implementations do.
    forgetful, h = [], torch.zeros(1, 1, 32)
    for piece in signal.split([1, 99, 400, 7, 493]):
        output, last = layer(piece, FastWeightsState(h, torch.zeros(1, 1, 32, 32)))
        forgetful.append(output)
        h = last.h

print(f"carrying h and A: largest difference from the whole {(torch.cat(pieces) - whole).abs().max():.1e}")
print(f"                  in the fast weights at the end    {(state.A - end.A).abs().max():.1e}")
print(f"carrying h alone: largest difference from the whole {(torch.cat(forgetful) - whole).abs().max():.1e}")
