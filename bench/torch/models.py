"""The models that torch.step and torch.hosts train, and their batches. Needs torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]  # inputs and their classes
CLASSES = 10
TOLERANCE = 1e-3
JUMPS = 0.5  # rounding can switch a ReLU on; behind BatchNorm over few values the effect is large
DRIFT = 0.05  # AdamW enlarges the rounding error of a small gradient
BATCHES = 8  # that a training takes in turn
TEXT, ALPHABET, DEPTH = 64, 128, 192  # characters of a text, distinct characters, the transformer's width
WORDS = 2000  # vocabulary of the transformer with tied embeddings


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Returns linear layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """Two convolutions with a shortcut (ResNet's basic block)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet18() -> nn.Sequential:
    """Returns the usual ResNet-18 for small images: a stem of 3 x 3 without pooling."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs in (64, 128, 256, 512):
        layers += [Block(inputs, outputs, 1 if outputs == 64 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


class Transformer(nn.Module):
    """Says which character follows a text."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(ALPHABET, DEPTH)
        self.places = nn.Parameter(torch.randn(TEXT, DEPTH) / 50)
        layer = nn.TransformerEncoderLayer(DEPTH, 4, 4 * DEPTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.next = nn.Linear(DEPTH, ALPHABET)

    def forward(self, text: Tensor) -> Tensor:
        seen: Tensor = self.layers(self.characters(text) + self.places)
        return self.next(seen[:, -1])  # type: ignore[no-any-return]


class Tied(nn.Module):
    """A language model whose embedding also gives the words' scores: its gradient is complete only when the backward
    pass ends. It has `layers` layers of width `width`, with 12 keys each."""

    def __init__(self, words: int, width: int, layers: int, text: int, *, learned: bool) -> None:
        """learned: positions have parameters; otherwise they are sines (Vaswani et al., section 3.5)."""
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.places = nn.Parameter(torch.randn(text, width) / 50) if learned else None
        self.register_buffer("waves", waves(text, width), persistent=False)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.register_buffer("future", torch.full((text, text), -torch.inf).triu(1), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        places = self.waves if self.places is None else self.places
        seen = self.layers(self.words(text) + places, mask=self.future, is_causal=True)
        return F.linear(seen, self.words.weight).transpose(1, 2)


def waves(text: int, width: int) -> Tensor:
    """Sines and cosines of places."""
    turns = torch.arange(text)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack((turns.sin(), turns.cos()), 2).flatten(1)


class Recurrent(nn.Module):
    """A language model of two LSTM layers. Their gradients come all at once, because they are one node of autograd."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.next = nn.Linear(width, words)

    def forward(self, text: Tensor) -> Tensor:
        seen: Tensor = self.next(self.lstm(self.words(text))[0])
        return seen.transpose(1, 2)


def normed(width: int, depth: int) -> nn.Sequential:
    """Returns linear layers, each followed by LayerNorm and ReLU."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def images(batch: int, *shape: int) -> Callable[[torch.Generator], Batch]:
    def make(random: torch.Generator) -> Batch:
        return torch.randn(batch, *shape, generator=random), torch.randint(CLASSES, (batch,), generator=random)

    return make


def texts(batch: int) -> Callable[[torch.Generator], Batch]:
    def make(random: torch.Generator) -> Batch:
        both = torch.randint(ALPHABET, (batch, TEXT + 1), generator=random)
        return both[:, :-1].contiguous(), both[:, -1].contiguous()

    return make


def sentences(batch: int, text: int, words: int) -> Callable[[torch.Generator], Batch]:
    """Returns a batch of texts; each word's class is the next word."""

    def make(random: torch.Generator) -> Batch:
        both = torch.randint(words, (batch, text + 1), generator=random)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    return make


class Task(Protocol):
    """A model and its training data."""

    @property
    def rate(self) -> float:
        """Of learning."""

    @property
    def tolerance(self) -> float:
        """Returns how far rounding may move a parameter in a few steps; see bench.torch.ways.differing."""

    def model(self) -> nn.Module:
        """Returns the model, with the same weights at each call."""

    def batches(self, rank: int) -> list[Batch]:
        """Returns one rank's batches, which it takes in turn."""


@dataclass(frozen=True)
class Case:
    """A task with a model that computes.

    Attributes:
        build: makes the model, with weights from torch's generator.
        batch: makes random inputs and classes for one step of one rank.
        rate: the learning rate.
    """

    title: str
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    rate: float = 0.01
    tolerance: float = TOLERANCE

    def model(self) -> nn.Module:
        torch.manual_seed(16)
        return self.build()

    def batches(self, rank: int) -> list[Batch]:
        random = torch.Generator().manual_seed(1000 + rank)
        return [self.batch(random) for _ in range(BATCHES)]


CASES = {
    "mlp3": Case("MLP, 1024 -> 3 x 1024 -> 10", lambda: mlp([1024, 1024, 1024, 1024, CLASSES]), images(32, 1024)),
    "mlp38": Case("MLP, 1024 -> 3 x 4096 -> 10", lambda: mlp([1024, 4096, 4096, 4096, CLASSES]), images(32, 1024)),
    "mlp19": Case("MLP, 512 -> 2 x 4096 -> 10", lambda: mlp([512, 4096, 4096, CLASSES]), images(32, 512)),
    "resnet18": Case("ResNet-18, images of 16 x 16", resnet18, images(8, 3, 16, 16), 0.001, JUMPS),
    "transformer": Case("transformer, 4 layers of 192", Transformer, texts(8), 0.001),
    "transformer38": Case(
        "transformer with tied embeddings, 3 layers of 128",
        lambda: Tied(WORDS, 128, 3, TEXT, learned=True),
        sentences(4, TEXT, WORDS),
        0.001,
        DRIFT,
    ),
    "gpt145": Case(
        "GPT with tied embeddings, 12 layers of 256",
        lambda: Tied(2 * WORDS, 256, 12, TEXT, learned=False),
        sentences(4, TEXT, 2 * WORDS),
        0.001,
        DRIFT,
    ),
    "lstm11": Case("LSTM, 2 layers of 512", lambda: Recurrent(800, 512), sentences(4, 16, 800), 0.001, DRIFT),
    "mlp34": Case("MLP with LayerNorm, 8 layers of 1024", lambda: normed(1024, 8), images(64, 1024), 0.001, JUMPS),
    "vgg": Case("VGG's head, 512 -> 4096 -> 4096 -> 10", lambda: mlp([512, 4096, 4096, CLASSES]), images(32, 512)),
}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
