"""The cost of a layer by each scheme (hpcomm/scheme.h)."""

from collections.abc import Sequence
from typing import Any

from .._ffi import ffi, lib
from .status import NULL, check

SCHEMES: dict[str, int] = {
    "ps": lib.HPC_SCHEME_PS,
    "hosts": lib.HPC_SCHEME_HOSTS,
    "factors": lib.HPC_SCHEME_FACTORS,
    "adam": lib.HPC_SCHEME_ADAM,
}
_NAMES = {value: name for name, value in SCHEMES.items()}


def scheme_cost(
    scheme: str,
    layer: Sequence[int],
    cluster: Sequence[int],
    rates: Sequence[float] | None,
    codec: Sequence[float] | None,
) -> tuple[float, float, float, float]:
    """hpc_scheme_cost. The sequences have the members of its structs, in their order."""
    cost = ffi.new("hpc_cost *")
    given = _structs(layer, cluster, rates)
    of = NULL if codec is None else ffi.new("hpc_codec_rates *", tuple(codec))
    check(lib.hpc_scheme_cost(SCHEMES[scheme], *given, of, cost))
    return cost.seconds, cost.sent, cost.busiest, cost.memory


def best_scheme(layer: Sequence[int], cluster: Sequence[int], rates: Sequence[float] | None, memory: float) -> str:
    """hpc_best_scheme. The sequences have the members of its structs, in their order."""
    found = ffi.new("int *")
    check(lib.hpc_best_scheme(*_structs(layer, cluster, rates), memory, found))
    return _NAMES[found[0]]


def _structs(layer: Sequence[int], cluster: Sequence[int], rates: Sequence[float] | None) -> tuple[Any, Any, Any]:
    return (
        ffi.new("hpc_layer *", tuple(layer)),
        ffi.new("hpc_cluster *", tuple(cluster)),
        NULL if rates is None else ffi.new("hpc_rates *", tuple(rates)),
    )
