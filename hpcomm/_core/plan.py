"""Plans, their rows, and the hubs, graphs and hierarchies that they are made from."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._ffi import ffi, lib
from .handle import owned
from .memory import address_of, from_buffer
from .status import check

PLAN_DEPTH: int = lib.HPC_PLAN_DEPTH
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
}
WIRES: dict[str, int] = {**CODECS, **PIECES}


def _layout(name: str) -> np.dtype[Any]:
    """A C struct of numbers and pointers as a dtype."""
    numbers = {"int": np.intc, "uint64_t": np.uint64, "double": np.double}
    names, struct = [], ffi.typeof(name)
    formats: list[Any] = []
    offsets: list[int] = []
    for field, info in struct.fields:
        names.append(field)
        formats.append(np.uintp if info.type.kind == "pointer" else numbers[info.type.cname])
        offsets.append(info.offset)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(struct)})


_ROW, _EDGE = _layout("hpc_row"), _layout("hpc_edge")
ROW_FIELDS = tuple(name for name, _ in ffi.typeof("hpc_row").fields)


PlanKey: TypeAlias = tuple[str, int, int]  # name, count and unit of a key


def _plan_keys(keys: list[PlanKey]) -> tuple[Any, list[Any]]:
    """hpc_key[], and the names that must stay as long."""
    names = [ffi.new("char[]", name.encode()) for name, _, _ in keys]
    c_keys = ffi.new("hpc_key[]", max(1, len(keys)))
    for c_key, name, (_, count, unit) in zip(c_keys, names, keys, strict=False):
        c_key.name, c_key.count, c_key.unit = name, count, unit
    return c_keys, names


def plan_hub(
    keys: list[PlanKey],
    workers: list[int],
    servers: list[int],
    *,
    cores: int,
    chunk: int,
    depth: int,
    wires: list[int],  # by key, as codecs_out
    sum: bool,  # the field's name
    each: bool,
    affinity: int,
    interfaces: int,
    codecs_out: list[int],
    apply_at: int,
) -> Any:
    hub = ffi.new("hpc_hub *")
    lib.hpc_hub_init(hub)
    c_keys, _names = _plan_keys(keys)  # both must stay until C has copied them
    c_wires, c_codecs_out = ffi.new("int[]", wires), ffi.new("int[]", codecs_out)
    c_workers, c_servers = ffi.new("int[]", workers), ffi.new("int[]", servers)
    hub.keys, hub.n_keys, hub.workers, hub.n_workers = c_keys, len(keys), c_workers, len(workers)
    hub.servers, hub.n_servers, hub.cores, hub.chunk = c_servers, len(servers), cores, chunk
    hub.depth, hub.sum, hub.each = depth, sum, each
    hub.affinity, hub.interfaces, hub.apply_at = affinity, interfaces, apply_at
    hub.wires, hub.n_wires, hub.codecs_out, hub.n_codecs_out = c_wires, len(wires), c_codecs_out, len(codecs_out)
    out = ffi.new("hpc_plan **")
    check(lib.hpc_plan_hub(hub, out))
    return ffi.gc(out[0], lib.hpc_plan_free)


def plan_hosts(
    keys: list[PlanKey],
    workers: list[int],
    groups: list[list[int]],  # by level: of each worker
    leads: list[bool],  # by worker
    *,
    top: int,
    cores: int,
    chunk: int,
    depth: int,
    wires: list[int],  # by key, as codecs_out
    sum: bool,  # the field's name
    codecs_out: list[int],
    apart: bool,
    each: bool,
    apply_at: int,
) -> Any:
    hosts = ffi.new("hpc_hosts *")
    lib.hpc_hosts_init(hosts)
    c_keys, _names = _plan_keys(keys)  # both must stay until C has copied them
    c_wires, c_codecs_out, c_workers = ffi.new("int[]", wires), ffi.new("int[]", codecs_out), ffi.new("int[]", workers)
    c_groups, c_leads = ffi.new("int[]", [group for level in groups for group in level]), ffi.new("int[]", leads)
    hosts.keys, hosts.n_keys, hosts.workers, hosts.n_workers = c_keys, len(keys), c_workers, len(workers)
    hosts.n_levels, hosts.groups, hosts.leads, hosts.top = len(groups), c_groups, c_leads, top
    hosts.cores, hosts.chunk, hosts.depth, hosts.sum, hosts.apply_at = cores, chunk, depth, sum, apply_at
    hosts.wires, hosts.n_wires = c_wires, len(wires)
    hosts.codecs_out, hosts.n_codecs_out, hosts.apart = c_codecs_out, len(codecs_out), apart
    hosts.each = each
    out = ffi.new("hpc_plan **")
    check(lib.hpc_plan_hosts(hosts, out))
    return ffi.gc(out[0], lib.hpc_plan_free)


def plan_tree(
    keys: list[PlanKey],
    parents: list[int],  # by rank; -1: the root
    *,
    cores: int,
    chunk: int,
    depth: int,
    wires: list[int],  # by key, as codecs_out
    codecs_out: list[int],
) -> Any:
    tree = ffi.new("hpc_tree *")
    lib.hpc_tree_init(tree)
    c_keys, _names = _plan_keys(keys)  # both must stay until C has copied them
    c_parents, c_wires, c_codecs_out = (ffi.new("int[]", numbers) for numbers in (parents, wires, codecs_out))
    tree.keys, tree.n_keys, tree.parents, tree.ranks = c_keys, len(keys), c_parents, len(parents)
    tree.cores, tree.chunk, tree.depth = cores, chunk, depth
    tree.wires, tree.n_wires = c_wires, len(wires)
    tree.codecs_out, tree.n_codecs_out = c_codecs_out, len(codecs_out)
    out = ffi.new("hpc_plan **")
    check(lib.hpc_plan_tree(tree, out))
    return ffi.gc(out[0], lib.hpc_plan_free)


def graph(
    keys: list[PlanKey],
    weights: NDArray[np.float64],
    *,
    cores: int,
    chunk: int,
    depth: int,
    wires: list[int],
) -> Any:
    """An hpc_graph. weights: (phases, ranks, ranks), what each rank (second) takes of each (third). wires: by key."""
    made = ffi.new("hpc_graph *")
    lib.hpc_graph_init(made)
    c_keys, names = _plan_keys(keys)
    c_weights, c_wires = from_buffer("double[]", weights), ffi.new("int[]", wires)
    made.keys, made.n_keys, made.weights = c_keys, len(keys), c_weights
    made.n_phases, made.ranks = weights.shape[:2]
    made.cores, made.chunk, made.depth = cores, chunk, depth
    made.wires, made.n_wires = c_wires, len(wires)
    return owned(made, lambda _: None, (made, c_keys, names, c_weights, weights, c_wires))


def plan_graph(graph: Any) -> Any:
    out = ffi.new("hpc_plan **")
    check(lib.hpc_plan_graph(graph, out))
    return ffi.gc(out[0], lib.hpc_plan_free)


def plan_make(
    keys: list[PlanKey],
    rows: Sequence[tuple[int, ...]],
    lists: list[list[tuple[int, int, float]]],
    affinity: int,
) -> Any:
    """A plan of these rows: tuples of hpc_row's fields in order, with the numbers of lists for in and out."""
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


def plan_check(plan: Any, size: int) -> None:
    check(lib.hpc_plan_check(plan, size))


def plan_affinity(plan: Any) -> int:
    return int(plan.affinity)


def plan_rows(plan: Any) -> NDArray[Any]:
    """The rows in place, valid while the plan is: hpc_row's fields, pointers as addresses."""
    rows = np.frombuffer(ffi.buffer(plan.rows, plan.n_rows * _ROW.itemsize), _ROW)
    rows.flags.writeable = False
    return rows


def plan_edges(address: int, n: int) -> list[tuple[int, int, float]]:
    """The n edges at an address of the plan's rows: rank, row, weight."""
    return plan_edge_table(address, n).tolist()


def plan_edge_table(address: int, n: int) -> NDArray[Any]:
    """The n edges at an address of the plan's rows in place, valid while the plan is: hpc_edge's fields."""
    if n == 0:  # of a row that only keeps a master
        return np.empty(0, _EDGE)
    return np.frombuffer(ffi.buffer(ffi.cast("hpc_edge *", address), n * _EDGE.itemsize), _EDGE)


EDGE_BYTES = _EDGE.itemsize
