"""A table with each key's way, and its predicted and measured time and bytes."""

import math
import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass
from time import monotonic

from ..context import Context
from ..exchange import Exchange
from ..model import Cost, Layer

_SPENT = struct.Struct("<dq")
_HEAD = ("key", "layer", "shape", "K", "way", "predicted ms", "bytes", "measured ms", "bytes", "why")
_WORDS = 5  # how many columns of text come before the columns of numbers


@dataclass(frozen=True)
class Measured:
    """The cost of exchanging a key alone: the seconds of the slowest rank, and the bytes that all ranks sent to
    others."""

    seconds: float
    sent: int


def measured(
    ctx: Context, exchange: Exchange, names: Sequence[str], pairs: Container[str], rounds: int
) -> dict[str, Measured]:
    """Measures the exchange of each key alone, and returns the best of some rounds. Collective, between two steps.

    Gradients are overwritten; parameters stay as they are. pairs: the keys that are sent as pairs of vectors.
    """
    found = {}
    for name in names:
        best, sent = math.inf, 0
        for _ in range(rounds):
            if name in pairs:
                own = exchange.factors(name)
                own.u[:], own.v[:], own.count = 1, 1, len(own.u)
            else:
                exchange.gradient(name).fill(1)
            before = _sent(exchange)
            ctx.barrier()
            start = monotonic()
            exchange.split.fold(name)
            exchange.split.gather(name)
            taken = monotonic() - start
            exchange.split.skip(name)
            ctx.barrier()  # then owners have sent everything
            every = [_SPENT.unpack(one) for one in ctx.allgather(_SPENT.pack(taken, _sent(exchange) - before))]
            best, sent = min(best, max(seconds for seconds, _ in every)), sum(n for _, n in every)
        found[name] = Measured(best, sent)
    return found


def line(layer: Layer, way: str, cost: Cost, seen: Measured | None, why: str, *, has_rates: bool) -> tuple[str, ...]:
    """Returns one line of the table. has_rates: whether the cost has seconds."""
    return (
        layer.name,
        layer.type,
        " x ".join(map(str, layer.shape)),
        str(layer.pairs or "-"),
        way,
        f"{1e3 * cost.seconds:.2f}" if has_rates else "-",
        f"{cost.sent:.0f}",
        f"{1e3 * seen.seconds:.2f}" if seen else "-",
        str(seen.sent) if seen else "-",
        why,
    )


def table(lines: Sequence[tuple[str, ...]]) -> str:
    """Returns the table: a head, and these lines."""
    every = [_HEAD, *lines]
    widths = [max(len(one[i]) for one in every) for i in range(len(_HEAD))]
    sides = ["<"] * _WORDS + [">"] * (len(_HEAD) - _WORDS - 1) + ["<"]
    padded = [[f"{cell:{side}{width}}" for cell, side, width in zip(one, sides, widths, strict=True)] for one in every]
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _sent(exchange: Exchange) -> int:
    return sum(entry.bytes for entry in exchange.stats().traffic)
