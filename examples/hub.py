"""A net with fast weights on the Hugging Face Hub: saved with its settings, and loaded by its name.

pip install fastweights huggingface-hub safetensors
python examples/hub.py
"""

import tempfile

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from fastweights import FastWeights


class Net(nn.Module, PyTorchModelHubMixin, library_name="fastweights", tags=["fast-weights"]):  # type: ignore[call-arg]
    """What the constructor is given goes into config.json, and the weights into model.safetensors."""

    def __init__(self, features: int, units: int, classes: int, decay: float = 0.95) -> None:
        super().__init__()
        self.core = FastWeights(features, units, decay=decay)
        self.readout = nn.Linear(units, classes)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.core(x)
        return self.readout(state.h[-1])  # type: ignore[no-any-return]


def main() -> float:
    """The largest difference between a net and what is loaded in its place."""
    x = torch.randn(7, 3, 10)
    net = Net(features=10, units=20, classes=5, decay=0.9).eval()
    with tempfile.TemporaryDirectory() as folder:
        net.save_pretrained(folder)  # type: ignore[operator]  # or net.push_to_hub("you/your-net")
        again = Net.from_pretrained(folder)  # or Net.from_pretrained("you/your-net")
    assert again.core.decay == 0.9
    with torch.no_grad():
        return float((net(x) - again(x)).abs().max())


if __name__ == "__main__":
    print(f"largest difference {main():.1e}")
