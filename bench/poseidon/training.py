"""The ranks of bench.poseidon that train on pictures of 32 x 32 pixels (Poseidon, figures 9 and 11). Needs torch.

The pictures are scikit-learn's digits or, with --data, CIFAR-10. Figure 9 uses a small ResNet instead of ResNet-152;
figure 11 uses CIFAR-10 quick unchanged. Each rank has its own batch; all ranks together take the samples in the same
order as one process with their whole batch.
"""

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hpcomm
import hpcomm.torch
from bench.common.launch import ROOT
from bench.poseidon.systems import ACCURACY, CONVERGENCE
from bench.poseidon.table import AUTO, ONE_BIT
from bench.torch.step import Group
from bench.torch.ways import differing
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "examples"))
import paper_data

SIDE, CLASSES, TESTS = 32, 10, 360
MOMENTUM = 0.9
RESNET_BATCH, RESNET_RATE = 16, 0.02  # of one rank; the rate grows with the ranks, like the whole batch
QUICK_BATCH, QUICK_RATE = 25, 0.01  # the batch of table 3, 100, over four ranks
TESTED = 500  # test images that are evaluated at once
EVERY = 10  # iterations from test to test
CHECKED = 3  # steps until parameters are compared with one process's; rounding errors grow with every step
TOLERANCE = 0.05  # see bench.torch.ways.differing
ONE_PROCESS = "one process"


class Residual(nn.Module):
    """ResNet's basic block. It normalizes by groups of channels, because normalizing over a batch depends on the
    batch's size."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, outputs) for _ in range(2))
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def resnet() -> nn.Sequential:
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    stem = [nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def cifar10_quick() -> nn.Sequential:
    """Caffe's: 145,578 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5, 1, 2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU()),
        *(nn.Conv2d(32, 32, 5, 1, 2), nn.ReLU(), nn.AvgPool2d(3, 2, ceil_mode=True)),
        *(nn.Conv2d(32, 64, 5, 1, 2), nn.ReLU(), nn.AvgPool2d(3, 2, ceil_mode=True)),
        *(nn.Flatten(), nn.Linear(1024, 64), nn.Linear(64, CLASSES)),
    )


@dataclass(frozen=True)
class Images:
    """Images (N, 3, 32, 32), and their classes. Digits are float32, CIFAR-10's pictures uint8."""

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def load(cls, seed: int, folder: str | None) -> "Images":
        if folder is not None:
            read: paper_data.Split = paper_data.load(folder, paper_data.PICTURES)
            parts = (torch.from_numpy(array) for array in (read.x, read.y, read.test_x, read.test_y))
            return cls(read.name, *parts)
        from sklearn.datasets import load_digits  # noqa: PLC0415

        images, shown = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(shown))
        large = np.kron(images.reshape(-1, 1, 8, 8), np.ones((1, 3, SIDE // 8, SIDE // 8)))
        x = torch.from_numpy((large[order] / 8 - 1).astype(np.float32))
        y = torch.from_numpy(shown[order])
        return cls("digits", x[TESTS:], y[TESTS:], x[:TESTS], y[:TESTS])

    @staticmethod
    def of(x: Tensor) -> Tensor:
        """Images of x as float32."""
        return x if x.is_floating_point() else torch.from_numpy(paper_data.standard(x.numpy()))

    def order(self, epoch: int) -> Tensor:
        return torch.randperm(len(self.y), generator=torch.Generator().manual_seed(epoch))


@dataclass
class Training:
    """One model, trained by ranks that each take a part of a batch."""

    model: nn.Module
    data: Images
    rate: float
    batch: int
    part: int = 0
    parts: int = 1
    wrap: Callable[[torch.optim.Optimizer, nn.Module], Any] | None = None
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        plain = torch.optim.SGD(self.model.parameters(), self.rate, MOMENTUM)
        self.optimizer: Any = plain if self.wrap is None else self.wrap(plain, self.model)
        self.steps = 0

    @property
    def in_epoch(self) -> int:
        return len(self.data.y) // (self.batch * self.parts)

    def step(self) -> None:
        epoch, at = divmod(self.steps, self.in_epoch)
        if at == 0:
            self.order = self.data.order(epoch)
        first = (at * self.parts + self.part) * self.batch
        chosen = self.order[first : first + self.batch]
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.data.of(self.data.x[chosen])), self.data.y[chosen])
        loss.backward()
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        self.steps += 1

    def parameters(self) -> list[Tensor]:
        if self.wrap is not None:
            self.optimizer.wait()
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def missed(self) -> int:
        """Counts the images of this part of the test set that the model misclassifies."""
        self.parameters()
        x, y = self.data.test_x[self.part :: self.parts], self.data.test_y[self.part :: self.parts]
        with torch.no_grad():
            parts = zip(x.split(TESTED), y.split(TESTED), strict=True)
            return sum(int((self.model(self.data.of(images)).argmax(1) != labels).sum()) for images, labels in parts)


class Trainings(Group):
    def rows(self, group: str) -> list[Row]:
        """[] on all ranks but 0."""
        self.data = Images.load(self.options.seed, self.options.data)
        torch.manual_seed(self.options.seed)
        return self.accuracy() if group == ACCURACY else self.one_bit()

    def wrap(self, way: str) -> Callable[[torch.optim.Optimizer, nn.Module], Any]:
        return lambda plain, model: hpcomm.torch.DistributedOptimizer(plain, self.ctx, model, way=way)

    def error(self, training: Training) -> float:
        """Returns the error on the test set, over all ranks."""
        return float(sum(self.comm.allgather(training.missed())) / len(self.data.test_y))

    def accuracy(self) -> list[Row]:
        first, size, rate = resnet(), self.size, RESNET_RATE * self.size
        own = Training(copy.deepcopy(first), self.data, rate, RESNET_BATCH, self.rank, size, self.wrap(AUTO))
        errors, seconds, early = list[float](), 0.0, list[Tensor]()
        for epoch in range(self.options.epochs):
            began = time.perf_counter()
            for _ in range(own.in_epoch):
                own.step()
                early = own.parameters() if own.steps == CHECKED else early
            seconds += time.perf_counter() - began
            errors.append(self.error(own))
            self.tell((epoch + 1) / self.options.epochs / 2)
        own.optimizer.close()
        if self.options.plant:
            early[0] += 1.0
        row = {"group": ACCURACY, "data": self.data.name, "hosts": size, "batch": RESNET_BATCH * size, "rate": rate}
        rows = [{**row, "name": AUTO, "errors": errors, "seconds": seconds, "wrong": 0}]
        if self.rank == 0:
            peer = Training(copy.deepcopy(first), self.data, rate, RESNET_BATCH * size)
            rows.append({**row, "name": ONE_PROCESS, **self.alone(peer, early, first), "wrong": 0})
            rows[0]["wrong"] = rows[1].pop("differing")
        self.meet()
        return rows if self.rank == 0 else []

    def alone(self, peer: Training, early: list[Tensor], first: nn.Module) -> Row:
        """Trains on whole batches in one rank, while the other ranks sleep."""
        errors, seconds, wrong = list[float](), 0.0, 0
        for _ in range(self.options.epochs):
            began = time.perf_counter()
            for _ in range(peer.in_epoch):
                peer.step()
                if peer.steps == CHECKED:
                    start = [parameter.detach() for parameter in first.parameters()]
                    wrong = differing(early, peer.parameters(), start, TOLERANCE)
            seconds += time.perf_counter() - began
            errors.append(peer.missed() / len(self.data.test_y))
        return {"errors": errors, "seconds": seconds, "differing": wrong}

    def one_bit(self) -> list[Row]:
        first, rows = cifar10_quick(), list[Row]()
        for i, (name, way) in enumerate(((AUTO, "auto"), (ONE_BIT, "1bit"))):
            own = Training(
                copy.deepcopy(first), self.data, QUICK_RATE, QUICK_BATCH, self.rank, self.size, self.wrap(way)
            )
            errors, began = list[tuple[int, float]](), time.perf_counter()
            for step in range(1, self.options.iterations + 1):
                own.step()
                if step % EVERY == 0 or step == self.options.iterations:
                    errors.append((step, self.error(own)))
                    self.tell((i + step / self.options.iterations) / 2)
            seconds = time.perf_counter() - began
            own.optimizer.close()
            losses = np.mean(self.comm.allgather(own.losses), axis=0).tolist()
            row = {"group": CONVERGENCE, "data": self.data.name, "hosts": self.size, "batch": QUICK_BATCH * self.size}
            rows.append({**row, "name": name, "wrong": 0, "losses": losses, "errors": errors, "seconds": seconds})
        return rows if self.rank == 0 else []
