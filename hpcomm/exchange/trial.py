"""Measures how long a step of a key takes with each of several codecs, by exchanging this key alone. It is used for
codecs whose work depends on the key's shape and on the rank that does the work, so that no rate can predict it."""

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from ..codec import Factors, Products
from ..context import Context
from ..optim import AnyRule
from ..stage import Key
from ..topology.by_key import by_names
from .options import EngineOptions
from .schemes import Made

_TIME = struct.Struct("d")
_LEAST, _MOST = 3, 30  # least and greatest number of rounds
_LONG = 0.2  # seconds after which no further round begins


def step_seconds(
    ctx: Context,
    made: Made,
    rules: dict[str, AnyRule],
    make: Callable[..., Any],
    timeout: float,
    key: Key,
    codecs: Sequence[Factors | Products],
) -> list[float]:
    """Returns, for each codec, the seconds of a step under BSP: the time of the slowest rank in the best round. The
    codecs take turns. Collective; the results are the same on all ranks.

    Args:
        ctx: the context of the ranks.
        made: the arguments of the exchange for which a codec is chosen.
        rules: the rule of each key.
        make: hpcomm.Exchange.
        timeout: seconds for each part.
        key: the key, a matrix.
        codecs: the codecs; each push has as many pairs of vectors as its codec allows.
    """
    topology = next(
        by_names(scheme.topology, scheme.names)[key.name] for scheme in made.schemes if key.name in scheme.names
    )
    random = np.random.default_rng(ctx.rank)
    pairs = [tuple(random.standard_normal((codec.K, n), np.float32) for n in key.shape) for codec in codecs]
    parameters = made.plan.codec_out
    if isinstance(parameters, Mapping):
        parameters = {name: one for name, one in parameters.items() if name == key.name}
    engine = EngineOptions(progress=made.engine.progress)
    best, spent = [float("inf")] * len(codecs), 0.0
    with ExitStack() as stack:
        exchanges = [
            stack.enter_context(
                make(
                    ctx,
                    {key.name: np.zeros(key.shape, np.float32)},
                    topology,
                    rule=rules[key.name],
                    plan=replace(made.plan, codec={key.name: codec}, codec_out=parameters),
                    engine=engine,
                    timeout=timeout,
                )
            )
            for codec in codecs
        ]
        for n in range(1 + _MOST):
            for i, (ex, pair) in enumerate(zip(exchanges, pairs, strict=True)):
                ctx.barrier(timeout)
                start = time.monotonic()
                ex.push_pull(key.name, pair, timeout)
                mine = _TIME.pack(time.monotonic() - start)
                taken = max(_TIME.unpack(part)[0] for part in ctx.allgather(mine, timeout))
                best[i] = min(best[i], taken) if n else best[i]  # the first round does not count: its pages are new
                spent += taken if n else 0
            if n >= _LEAST and spent > _LONG:
                break
    return best
