"""Binds plans, their rows, and the arguments of the planners that make them."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._ffi import ffi, lib
from .handle import owned
from .memory import address_of, from_buffer
from .status import check, checking

ACTIONS: dict[str, int] = {
    "apply": lib.HPC_APPLY,
    "forward": lib.HPC_FORWARD,
    "emit": lib.HPC_EMIT,
    "relay": lib.HPC_RELAY,
}
AFFINITIES: dict[str, int] = {"key": lib.HPC_KEY_BY_CORE, "worker": lib.HPC_WORKER_BY_INTERFACE}
APPLY_AT: dict[str, int] = {
    "owners": lib.HPC_AT_OWNERS,
    "receivers": lib.HPC_AT_RECEIVERS,
    "both": lib.HPC_AT_BOTH,
}
TOPS: dict[str, int] = {"sharded": lib.HPC_TOP_SHARDED, "ring": lib.HPC_TOP_RING}
CODECS: dict[str, int] = {"float32": lib.HPC_F32, "float16": lib.HPC_F16, "bfloat16": lib.HPC_BF16}
PIECES: dict[str, int] = {  # of variable length
    "threshold": lib.HPC_THRESHOLD,
    "topk": lib.HPC_TOPK,
    "onebit": lib.HPC_ONEBIT,
    "own": lib.HPC_OWN_CODEC,
    "factors": lib.HPC_FACTORS,
    "float4": lib.HPC_FLOAT4,
}
WIRES: dict[str, int] = {**CODECS, **PIECES}
PLAN_DEPTH: int = lib.HPC_PLAN_DEPTH


def _layout(name: str) -> np.dtype[Any]:
    """Returns the dtype of a C struct of numbers and pointers."""
    numbers = {"int": np.intc, "uint64_t": np.uint64, "double": np.double}
    struct = ffi.typeof(name)
    fields = {
        field: (np.uintp if info.type.kind == "pointer" else numbers[info.type.cname], info.offset)
        for field, info in struct.fields
    }
    formats, offsets = zip(*fields.values(), strict=True)
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(struct)})


_ROW, _EDGE = _layout("hpc_row"), _layout("hpc_edge")
ROW_FIELDS = tuple(name for name, _ in ffi.typeof("hpc_row").fields)


PlanKey: TypeAlias = tuple[str, int, int]  # a key's name, count and unit


def _plan_keys(keys: list[PlanKey]) -> tuple[Any, list[Any]]:
    """Makes an array of hpc_key; returns it with its names, which must live as long."""
    names = [ffi.new("char[]", name.encode()) for name, _, _ in keys]
    c_keys = ffi.new("hpc_key[]", max(1, len(keys)))
    for c_key, name, (_, count, unit) in zip(c_keys, names, keys, strict=False):
        c_key.name, c_key.count, c_key.unit = name, count, unit
    return c_keys, names


def plan_arguments(planner: str, keys: list[PlanKey], **fields: Any) -> Any:
    """Makes the arguments of a planner (an hpc_hub for "hub"); members that are not given have C's defaults. A list or
    an array becomes a C array; if the struct has a member n_NAME, it gets the length."""
    struct = f"hpc_{planner}"
    made, types = ffi.new(f"{struct} *"), dict(ffi.typeof(struct).fields)
    check(lib.hpc_plan_args_init(planner.encode(), made, ffi.sizeof(struct)))
    c_keys, names = _plan_keys(keys)
    made.keys, made.n_keys = c_keys, len(keys)
    keep: list[Any] = [c_keys, names]
    for field, value in fields.items():
        c_value = value
        if isinstance(value, list):
            c_value = ffi.new("int[]", value)
        elif isinstance(value, np.ndarray):
            c_value = from_buffer("double[]" if value.dtype == np.float64 else "unsigned char[]", value)
        setattr(made, field, c_value)
        keep += [c_value, value]
        if c_value is not value and f"n_{field}" in types.keys() - fields.keys():
            setattr(made, f"n_{field}", len(value))
    return owned(made, lambda _: None, (made, *keep))


def plan_of(planner: str, arguments: Any) -> Any:
    out = ffi.new("hpc_plan **")
    check(lib.hpc_plan_make(planner.encode(), arguments, out))
    return ffi.gc(out[0], lib.hpc_plan_free)


def plan_make(
    keys: list[PlanKey],
    rows: Sequence[tuple[int, ...]],
    lists: list[list[tuple[int, int, float]]],
    affinity: int,
) -> Any:
    """Makes a plan of rows. A row is a tuple of hpc_row's fields in order, except that its last two are indices into
    lists, the lists of edges: in, then out."""
    plan = ffi.new("hpc_plan *")
    c_keys, names = _plan_keys(keys)
    c_edges, starts, n = ffi.new("hpc_edge[]", max(1, sum(map(len, lists)))), [], 0
    c_rows = ffi.new("hpc_row[]", max(1, len(rows)))
    edges, table = (np.frombuffer(ffi.buffer(c), kind) for c, kind in ((c_edges, _EDGE), (c_rows, _ROW)))
    for values in lists:
        starts.append(address_of(c_edges + n))
        edges[n : n + len(values)] = values
        n += len(values)
    for i, (*numbers, first_in, first_out) in enumerate(rows):
        table[i] = (*numbers, len(lists[first_in]), len(lists[first_out]), starts[first_in], starts[first_out])
    plan.n_keys, plan.keys, plan.n_rows, plan.rows = len(keys), c_keys, len(rows), c_rows
    plan.affinity = affinity
    keep = (plan, c_keys, names, c_edges, c_rows)
    return owned(plan, lambda _: None, keep)


plan_check = checking(lib.hpc_plan_check)


def plan_affinity(plan: Any) -> int:
    return int(plan.affinity)


def plan_rows(plan: Any) -> NDArray[Any]:
    """Returns a read-only view of the plan's rows, with hpc_row's fields; pointers are addresses."""
    rows = np.frombuffer(ffi.buffer(plan.rows, plan.n_rows * _ROW.itemsize), _ROW)
    rows.flags.writeable = False
    return rows


def plan_edges(address: int, n: int) -> list[tuple[int, int, float]]:
    """Returns the n edges at an address from the plan's rows, as tuples (rank, row, weight)."""
    return plan_edge_table(address, n).tolist()


def plan_edge_table(address: int, n: int) -> NDArray[Any]:
    """Returns a view of the plan's n edges at an address from its rows, with hpc_edge's fields."""
    if n == 0:  # a row that only keeps a master has none
        return np.empty(0, _EDGE)
    return np.frombuffer(ffi.buffer(ffi.cast("hpc_edge *", address), n * _EDGE.itemsize), _EDGE)


EDGE_BYTES = _EDGE.itemsize
