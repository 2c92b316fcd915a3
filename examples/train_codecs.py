"""Trains the same classifier once with each codec, and prints how many bytes each codec sends.

    mpirun -n 4 python examples/train_codecs.py
    HPCOMM_TRANSPORT=tcp mpirun -n 4 python examples/train_codecs.py     # as between hosts: "auto" may choose TopK

The classifier has one hidden layer, and learns to tell apart classes of random points. Every rank has different points.
The part of an update that a codec leaves out is sent with later updates, so the loss falls with every codec.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import hpcomm
from hpcomm.codec import Codecs, ErrorFeedback, OneBit, Threshold, TopK

CODECS: dict[str, Codecs] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "bfloat16, error sent later": ErrorFeedback("bfloat16"),
    "threshold of 0.02 / sqrt(t)": Threshold(0.02),
    "the largest 1 %": TopK(0.01),
    "1 bit": OneBit(),
    "auto": "auto",
}
WIDTH, HIDDEN, CLASSES, BATCH, STEPS = 64, 256, 10, 64, 150

Floats = NDArray[np.float32]


def points(seed: int, n: int) -> tuple[Floats, NDArray[np.int64]]:
    """Returns n points, which are noisy copies of their class's centre, and their classes."""
    centres = np.random.default_rng(0).standard_normal((CLASSES, WIDTH))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    return (centres[labels] + rng.standard_normal((n, WIDTH)) * 1.5).astype(np.float32), labels


def gradients(params: Mapping[str, Floats], x: Floats, y: NDArray[np.int64]) -> tuple[float, dict[str, Floats]]:
    """Returns the mean cross entropy of a batch, and the gradient of each layer."""
    hidden = np.maximum(x @ params["first"], 0)
    scores = hidden @ params["last"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss = -float(np.log(chances[np.arange(len(y)), y]).mean())
    chances[np.arange(len(y)), y] -= 1
    chances /= len(y)
    back = (chances @ params["last"].T) * (hidden > 0)
    return loss, {"last": hidden.T @ chances, "first": x.T @ back}


def main() -> None:
    ctx = hpcomm.init()
    rng = np.random.default_rng(1)
    layers = {
        "first": (rng.standard_normal((WIDTH, HIDDEN)) / 8).astype(np.float32),
        "last": (rng.standard_normal((HIDDEN, CLASSES)) / 16).astype(np.float32),
    }
    x, y = points(2 + ctx.rank, 4096)
    if ctx.rank == 0:
        print(f"{'codec':30} {'first loss':>10} {'last loss':>10} {'kept':>7} {'bytes a step':>13}")
    for name, codec in CODECS.items():
        with hpcomm.parameter_hub(ctx, layers, rule=hpcomm.SGD(lr=0.2), codec=codec) as hub:
            losses = []
            for step in range(STEPS):
                batch = slice(step * BATCH % len(x), step * BATCH % len(x) + BATCH)
                loss, grads = gradients(hub.params, x[batch], y[batch])
                hub.step(grads)
                losses.append(loss)
            told = {key: one for key, one in hub.stats().codecs.items() if one.pieces}
            kept, nbytes = [], 0.0
            for key, value in layers.items():
                kept.append(told[key].density if key in told else 1.0)
                nbytes += told[key].bytes / STEPS if key in told else value.size * hub.codecs[key].dtype.itemsize
        if ctx.rank == 0:
            first, last = np.mean(losses[:10]), np.mean(losses[-10:])
            print(f"{name:30} {first:10.3f} {last:10.3f} {np.mean(kept):7.1%} {nbytes:13,.0f}")
    ctx.close()


if __name__ == "__main__":
    main()
