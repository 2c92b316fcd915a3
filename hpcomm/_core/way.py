"""Binds the cost of a layer by each way of sending its update (hpcomm/way.h)."""

from collections.abc import Sequence
from typing import Any

from .._ffi import ffi, lib
from .status import NULL, check

WAYS: dict[str, int] = {
    "ps": lib.HPC_WAY_PS,
    "hosts": lib.HPC_WAY_HOSTS,
    "factors": lib.HPC_WAY_FACTORS,
    "adam": lib.HPC_WAY_ADAM,
}
_NAMES = {value: name for name, value in WAYS.items()}


def way_cost(
    way: str,
    layer: Sequence[int],
    cluster: Sequence[int],
    rates: Sequence[float] | None,
    codec: Sequence[float] | None,
) -> tuple[float, float, float, float]:
    """Calls hpc_way_cost; each sequence has the members of a C struct, in order."""
    cost = ffi.new("hpc_cost *")
    given = _structs(layer, cluster, rates)
    of = NULL if codec is None else ffi.new("hpc_codec_rates *", tuple(codec))
    check(lib.hpc_way_cost(WAYS[way], *given, of, cost))
    return cost.seconds, cost.sent, cost.busiest, cost.memory


def best_way(layer: Sequence[int], cluster: Sequence[int], rates: Sequence[float] | None, memory: float) -> str:
    """hpc_best_way; see way_cost."""
    found = ffi.new("int *")
    check(lib.hpc_best_way(*_structs(layer, cluster, rates), memory, found))
    return _NAMES[found[0]]


def _structs(layer: Sequence[int], cluster: Sequence[int], rates: Sequence[float] | None) -> tuple[Any, Any, Any]:
    return (
        ffi.new("hpc_layer *", tuple(layer)),
        ffi.new("hpc_cluster *", tuple(cluster)),
        NULL if rates is None else ffi.new("hpc_rates *", tuple(rates)),
    )
