"""The applications of Parameter Flow (section 5.1) as bench.parameter_flow trains them: examples/flow at two sizes."""

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import hpcomm
from bench.common import models
from bench.common.launch import ROOT
from bench.parameter_flow.cases import ALEXNET, EIGHT, FULL, PARTS, TINY

sys.path.insert(0, str(ROOT / "examples"))
from flow.model import Defaults, Floats, Model, Out, Params, Rows

SEED = 0


def _regression(ctx: hpcomm.Context, size: str, folder: str) -> Model:
    from flow.data import share_words, words, words_of  # noqa: PLC0415 - it needs scikit-learn
    from flow.lr import WordRegression  # noqa: PLC0415

    features, classes, samples = {FULL: (1 << 17, 64, None), EIGHT: (1 << 15, 64, None), TINY: (1 << 10, 8, 2000)}[size]

    def read() -> Any:
        return words_of(folder, features) if folder else words(features, classes, samples, SEED)

    return WordRegression(share_words(ctx, read, SEED))


def _factorization(ctx: hpcomm.Context, size: str, folder: str) -> Model:
    from flow.data import ratings, share_ratings  # noqa: PLC0415 - it needs scikit-learn
    from flow.mf import Factorization  # noqa: PLC0415

    sizes, latent = {FULL: (None, 861), EIGHT: (None, 215), TINY: ((60, 80), 12)}[size]
    sizes = None if folder else sizes
    given = (*sizes, 3000) if sizes else None
    read = share_ratings(ctx, lambda: ratings(given, SEED, folder or None), sizes, SEED)
    return Factorization(read, latent, seed=SEED)


def _network(ctx: hpcomm.Context, size: str, folder: str) -> Model:
    from flow.cnn import Convolutional  # noqa: PLC0415 - it needs torch
    from flow.data import on_every_rank, pictures  # noqa: PLC0415

    width, channels = {
        FULL: (2112, (16, 48, 64, 64, 112)),
        EIGHT: (1056, (8, 24, 32, 32, 56)),
        TINY: (64, (8, 8, 8, 8, 8)),
    }[size]
    return Convolutional(on_every_rank(ctx, lambda: pictures(SEED, folder or None)), width, channels, SEED)


class Shape(Model):
    """An application that has only a model's keys; each update is one small number."""

    defaults: ClassVar[Defaults] = Defaults(steps=1, batch=1, eta=1.0, low=0.0, up=0.0)
    samples = 1 << 16

    def __init__(self, name: str, part: int) -> None:
        self.name = name
        self.counts = {key.name: max(1, key.count // part) for key in models.load(name).keys}

    def start(self) -> dict[str, Floats]:
        return {name: np.zeros(count, np.float32) for name, count in self.counts.items()}

    def update(self, params: Params, rows: Rows, scale: float, out: Out) -> None:
        for name in self.counts:
            out(name).fill(2.0**-10)

    def objective(self, params: Params) -> float:
        return float(np.mean([array[0] for array in params.values()]))

    def score(self, params: Params) -> tuple[str, float]:
        return "", 0.0


def _shape(ctx: hpcomm.Context, size: str, folder: str) -> Model:
    return Shape(ALEXNET, PARTS[size])


MAKE: dict[str, Callable[[hpcomm.Context, str, str], Model]] = {
    "lr": _regression,
    "mf": _factorization,
    "cnn": _network,
    ALEXNET: _shape,
}
