"""Lightning trains a network on handwritten digits; its gradients go by hpcomm.

    python examples/train_lightning.py --ranks 2
    python examples/train_lightning.py --ranks 2 --backend gloo     # the same by Gloo

Lightning starts the ranks. Two lines are for hpcomm. The last line is the test loss and accuracy.
"""

import argparse
import json
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hpcomm.torch  # noqa: F401  # <----------------------------------------------------------- 1, makes the backend


class Digits(L.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        out = self.net(x)
        told = {"loss": nn.functional.cross_entropy(out, y), "accuracy": (out.argmax(1) == y).float().mean()}
        self.log_dict(told, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def data() -> tuple[TensorDataset, TensorDataset]:
    """Returns 1440 digits to train on, and 352 others, of which each of 2 or 4 ranks tests equally many."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return TensorDataset(x[:1440], y[:1440]), TensorDataset(x[1440:1792], y[1440:1792])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="hpcomm")
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=given.ranks,
        strategy=DDPStrategy(process_group_backend=given.backend),  # <---------------------------------------------- 2
        max_epochs=given.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    train, test = data()
    model = Digits()
    trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True))
    found: Any = trainer.test(model, DataLoader(test, batch_size=len(test) // given.ranks), verbose=False)
    if trainer.is_global_zero:
        print(json.dumps(found[0]))


if __name__ == "__main__":
    main()
