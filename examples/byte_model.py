"""A small transformer that predicts the next byte of a text, for train_local_steps.py."""

from dataclasses import dataclass

import numpy as np
import text_data
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import hpcomm

HELD_OUT = 0.1  # part of the text that is kept for validation


# ---- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """A text, in which each byte is an index into the text's alphabet.

    train: int64 (n,), this rank's part. held_out: int64 (rows, context + 1), for validation, the same on all ranks.
    """

    name: str
    alphabet: int
    train: Tensor
    held_out: Tensor


def share(ctx: hpcomm.Context, context: int, rows: int) -> Text:
    """Reads a text on rank 0, and returns it with this rank's part to train on. All ranks call it."""
    name, whole = text_data.share_bytes(ctx, text_data.prose)
    alphabet, numbers = np.unique(whole, return_inverse=True)
    data = torch.from_numpy(numbers.astype(np.int64))
    cut = len(data) - int(len(data) * HELD_OUT)
    each = cut // ctx.size
    held_out = data[cut:].unfold(0, context + 1, context)[:rows]
    return Text(name, len(alphabet), data[ctx.rank * each : (ctx.rank + 1) * each], held_out)


# ---- model -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer of a transformer, with normalization before each half (Radford et al., 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mixed = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.mixed(seen)
        return x + self.narrow(gelu(self.wide(self.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """A model that scores the next byte at each place: int64 (n, length) to float32 (n, length, alphabet)."""

    def __init__(self, alphabet: int, width: int, layers: int, context: int, heads: int = 4) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(alphabet, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, alphabet)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        places = self.places.weight[: text.shape[1]]
        return self.scores(self.norm(self.blocks(self.bytes(text) + places)))  # type: ignore[no-any-return]

    def loss(self, rows: Tensor) -> Tensor:
        """Returns the mean cross entropy of rows (n, length + 1), in nats a byte."""
        return cross_entropy(self(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
