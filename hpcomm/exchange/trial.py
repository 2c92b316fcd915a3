"""The time that a step of a key takes with a codec, measured by an exchange of that key alone. It is for codecs whose
work depends on the shape of a key and on the rank that does it, so that no rate tells it."""

import struct
import time
from collections.abc import Callable, Mapping
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
_ROUNDS = 3


def step_seconds(
    ctx: Context,
    made: Made,
    rules: dict[str, AnyRule],
    make: Callable[..., Any],
    timeout: float,
    key: Key,
    codec: Factors | Products,
) -> float:
    """Seconds of a step under BSP, of the slowest rank the best of some rounds. Collective, with the same result on all
    ranks.

    Args:
        ctx: the ranks.
        made: the arguments of the exchange for which a codec is chosen.
        rules: by key.
        make: hpcomm.Exchange.
        timeout: seconds for each part.
        key: a matrix.
        codec: of the key. Each push has as many pairs of vectors as it takes.
    """
    topology = next(
        by_names(scheme.topology, scheme.names)[key.name] for scheme in made.schemes if key.name in scheme.names
    )
    random = np.random.default_rng(ctx.rank)
    u, v = (random.standard_normal((codec.K, n), np.float32) for n in key.shape)
    parameters = made.plan.codec_out
    if isinstance(parameters, Mapping):
        parameters = {name: one for name, one in parameters.items() if name == key.name}
    best = float("inf")
    with make(
        ctx,
        {key.name: np.zeros(key.shape, np.float32)},
        topology,
        rule=rules[key.name],
        plan=replace(made.plan, codec={key.name: codec}, codec_out=parameters),
        engine=EngineOptions(deterministic=made.engine.deterministic, progress=made.engine.progress),
        timeout=timeout,
    ) as ex:
        for _ in range(1 + _ROUNDS):
            ctx.barrier(timeout)
            start = time.monotonic()
            ex.push_pull(key.name, (u, v), timeout)
            taken = time.monotonic() - start
            best = min(best, max(_TIME.unpack(part)[0] for part in ctx.allgather(_TIME.pack(taken), timeout)))
    return best
