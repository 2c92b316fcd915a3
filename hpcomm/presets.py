"""Presets: each paper as a function that returns an Exchange of that paper's parts."""

from collections.abc import Iterable, Mapping
from typing import Any

from .arguments import refuse
from .consistency import BSP
from .context import Context
from .errors import HpcommError
from .exchange import Exchange
from .optim import AnyRule, Nesterov
from .topology import ParameterServer

_RULE = Nesterov()


def parameter_hub(
    ctx: Context,
    params: Mapping[str, Any],
    *,
    placement: str = "CS",
    servers: int | Iterable[int] | None = None,
    affinity: str = "key",
    interfaces: int | None = None,
    rule: AnyRule = _RULE,
    **options: Any,
) -> Exchange:
    """PHub (Luo et al., SoCC 2018): a parameter server whose cores each own chunks of 32 KiB for life, under BSP, with
    Nesterov's rule (sections 3.2 and 4.2).

    Args:
        ctx, params, rule: as Exchange takes them.
        placement: "CC", "CS", "NCC" or "NCS" (section 2.2), see ParameterServer: colocated or not with the workers,
            centralized or sharded.
        servers: of ParameterServer.
        affinity, interfaces: of ParameterServer: how several NICs are used (section 4.5).
        options: Exchange's other ones, e.g. chunk_bytes=65536, wire="float16" or consistency=ASYNC, under which every
            update counts in full. plan=... stands for placement, servers, affinity and interfaces too.

    Raises:
        InvalidArgument: an argument that cannot be, here or on another rank.
        ConfigError: ranks disagree.
    """
    try:
        topology = ParameterServer(placement=placement, servers=servers, affinity=affinity, interfaces=interfaces)
    except HpcommError as wrong:
        if isinstance(ctx, Context):
            refuse(ctx, wrong)
        raise
    return Exchange(ctx, params, topology, options.pop("consistency", BSP), rule, **options)
