"""The layers of real models, key by key: bench/common/models/*.json; each file names the definition it comes from."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from hpcomm.bench.training import FlatKey

FOLDER = Path(__file__).resolve().parent / "models"
NAMES = ("alexnet", "vgg19", "resnet18", "resnet50", "transformer38", "gpt145", "lstm11", "mlp34")


Key = FlatKey


@dataclass(frozen=True)
class Model:
    title: str
    source: str
    keys: tuple[Key, ...]

    @property
    def nbytes(self) -> int:
        return 4 * sum(key.count for key in self.keys)


def load(name: str) -> Model:
    read = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    keys = tuple(Key(key, math.prod(shape)) for key, shape in read["keys"].items())
    total = sum(key.count for key in keys)
    if total != read["parameters"]:
        raise ValueError(f"{name}.json: its keys have {total} parameters, not {read['parameters']}")
    return Model(read["model"], read["source"], keys)


def alike(keys: int, nbytes: int) -> Model:
    """Returns a model of equal keys: how many, and the bytes of each."""
    return Model("keys of one size", "", tuple(Key(f"key {k}", max(1, nbytes // 4)) for k in range(keys)))


def flat(nbytes: int) -> Model:
    """One key of so many bytes."""
    return Model("one flat buffer", "", (Key("flat", max(1, nbytes // 4)),))
