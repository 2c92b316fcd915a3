"""Queues of NOTIFY-ACK and their memory."""

from typing import Any

from .._ffi import ffi, lib
from .handle import collected
from .memory import address_of, members, memory_of, new_word
from .status import check

DTYPES: dict[str, int] = {"float32": lib.HPC_F32, "float64": lib.HPC_F64}

queue_acquire = lib.hpc_queue_acquire
queue_send = lib.hpc_queue_send
queue_recv = lib.hpc_queue_recv
queue_ack = lib.hpc_queue_ack
queue_reduce = lib.hpc_queue_reduce


def queue_create(
    context: Any,
    in_peers: tuple[int, ...],
    out_peers: tuple[int, ...],
    nbytes: int,
    depth: int,
    buffers: int,
    kind: str,
    timeout: float,
) -> Any:
    config = ffi.new("hpc_queue_config *")
    lib.hpc_queue_config_init(config)
    c_in, c_out, c_kind = ffi.new("int[]", in_peers), ffi.new("int[]", out_peers), ffi.new("char[]", kind.encode())
    config.in_peers, config.n_in, config.out_peers, config.n_out = c_in, len(in_peers), c_out, len(out_peers)
    config.nbytes, config.depth, config.buffers, config.type = nbytes, depth, buffers, c_kind
    keep = c_in, c_out, c_kind
    return collected(lib.hpc_queue_create, (context, config), "hpc_queue *", timeout, lib.hpc_queue_free, keep)


def queue_memory(queue: Any, rank: int) -> Any:
    """Returns an object that keeps rank's part of the queue mapped; None if it cannot be mapped."""
    return memory_of(lib.hpc_queue_memory(queue, rank))


def queue_buffer(queue: Any, i: int) -> int:
    return address_of(lib.hpc_queue_buffer(queue, i))


def queue_versions(queue: Any, peer: int) -> tuple[int, int]:
    header, footer = new_word(), new_word()
    check(lib.hpc_queue_versions(queue, peer, header, footer))
    return header[0], footer[0]


def queue_stats(queue: Any) -> dict[str, Any]:
    stats = ffi.new("hpc_queue_stats *")
    check(lib.hpc_queue_get_stats(queue, stats))
    return members(stats)


def new_pointer() -> Any:
    """Makes a variable for the address that queue_recv returns."""
    return ffi.new("const void **")


def weights(values: tuple[float, ...]) -> Any:
    return ffi.new("double[]", values)
