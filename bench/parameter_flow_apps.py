"""The applications of Parameter Flow (section 5.1) as bench.parameter_flow trains them: examples/flow at two sizes."""

import sys
from collections.abc import Callable

import hpcomm
from bench.launch import ROOT
from bench.parameter_flow_cases import EIGHT, FULL, TINY

sys.path.insert(0, str(ROOT / "examples"))
from flow import data, lr, mf
from flow.model import Model

SEED = 0


def _regression(ctx: hpcomm.Context, size: str) -> Model:
    features, classes, samples = {FULL: (1 << 17, 64, None), EIGHT: (1 << 15, 64, None), TINY: (1 << 10, 8, 2000)}[size]
    return lr.WordRegression(data.share_words(ctx, lambda: data.words(features, classes, samples, SEED), SEED))


def _factorization(ctx: hpcomm.Context, size: str) -> Model:
    sizes, latent = {FULL: (None, 861), EIGHT: (None, 215), TINY: ((60, 80), 12)}[size]
    given = (*sizes, 3000) if sizes else None
    ratings = data.share_ratings(ctx, lambda: data.ratings(given, SEED), sizes, SEED)
    return mf.Factorization(ratings, latent, seed=SEED)


def _network(ctx: hpcomm.Context, size: str) -> Model:
    from flow import cnn  # noqa: PLC0415 - it needs torch

    width, channels = {
        FULL: (2112, (16, 48, 64, 64, 112)),
        EIGHT: (1056, (8, 24, 32, 32, 56)),
        TINY: (64, (8, 8, 8, 8, 8)),
    }[size]
    return cnn.Convolutional(data.pictures(SEED), width, channels, SEED)


MAKE: dict[str, Callable[[hpcomm.Context, str], Model]] = {"lr": _regression, "mf": _factorization, "cnn": _network}
