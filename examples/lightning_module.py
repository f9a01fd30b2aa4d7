"""Fast weights in a LightningModule: trained by Lightning, saved and loaded again as a checkpoint of Lightning.

pip install 'fastweights[paper]' lightning
python examples/lightning_module.py
"""

import sys
import tempfile
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fastweights import FastWeights
from fastweights.tasks import retrieval


class Net(lightning.LightningModule):
    """Which digit stood behind the letter: `k8??k` → 8."""

    def __init__(self, units: int = 30, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(len(retrieval.ALPHABET), 50)
        self.core = FastWeights(50, units, decay=0.9)
        self.readout = nn.Linear(units, retrieval.ANSWERS)
        self.lr = lr

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.core(self.embed(tokens.T))
        return self.readout(output[-1])  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor]) -> Tensor:
        tokens, answers = batch
        return nn.functional.cross_entropy(self(tokens), answers)

    def validation_step(self, batch: list[Tensor]) -> None:
        tokens, answers = batch
        self.log("error", (self(tokens).argmax(1) != answers).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.lr)


def main(epochs: int = 4) -> float:
    """The validation error, of the checkpoint that was written."""
    lightning.seed_everything(0)
    train, validation = (TensorDataset(*retrieval.sample(count, pairs=1)) for count in (20_000, 2_000))
    loaders = DataLoader(train, 64, shuffle=True), DataLoader(validation, 500)
    options = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "accelerator": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(max_epochs=epochs, default_root_dir=folder, **options)
        trainer.fit(Net(), *loaders)
        trainer.save_checkpoint(Path(folder, "net.ckpt"))
        net = Net.load_from_checkpoint(Path(folder, "net.ckpt"), weights_only=True)
        return float(trainer.validate(net, loaders[1], verbose=False)[0]["error"])


if __name__ == "__main__":
    print(f"error {main(*map(int, sys.argv[1:])):.1%}")
