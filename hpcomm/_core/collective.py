"""Collectives of arrays, and messages between two ranks."""

from collections.abc import Callable, Sized
from typing import Any

import numpy as np

from .. import _fast
from .._ffi import ffi, lib
from ..errors import HpcommError
from .handle import collective
from .memory import address_of
from .status import NULL, check, error, wait

COLLECTIVES: dict[str, int] = {
    "allreduce": lib.HPC_ALLREDUCE,
    "reduce": lib.HPC_REDUCE,
    "reduce_scatter": lib.HPC_REDUCE_SCATTER,
    "broadcast": lib.HPC_BROADCAST,
    "allgather": lib.HPC_ALLGATHER,
    "gather": lib.HPC_GATHER,
    "scatter": lib.HPC_SCATTER,
    "alltoall": lib.HPC_ALLTOALL,
}
OPS: dict[str, int] = {
    "sum": lib.HPC_SUM,
    "mean": lib.HPC_AVG,
    "min": lib.HPC_MIN,
    "max": lib.HPC_MAX,
    "prod": lib.HPC_PROD,
    "and": lib.HPC_BAND,
    "or": lib.HPC_BOR,
    "xor": lib.HPC_BXOR,
}
_OP_NAMES = tuple(sorted(OPS, key=OPS.__getitem__))
ELEMENTS: dict[str, int] = {  # by the names of NumPy's dtypes
    "float32": lib.HPC_F32,
    "float64": lib.HPC_F64,
    "float16": lib.HPC_F16,
    "bfloat16": lib.HPC_BF16,
    "int8": lib.HPC_I8,
    "uint8": lib.HPC_U8,
    "int16": lib.HPC_I16,
    "uint16": lib.HPC_U16,
    "int32": lib.HPC_I32,
    "uint32": lib.HPC_U32,
    "int64": lib.HPC_I64,
    "uint64": lib.HPC_U64,
    "bool": lib.HPC_BOOL,
    "complex64": lib.HPC_C64,
    "complex128": lib.HPC_C128,
}
_CALL, _CALL_BYTES = ffi.typeof("hpc_collective_call *"), ffi.sizeof("hpc_collective_call")
_VOID, _REQUEST = ffi.typeof("void *"), ffi.typeof("hpc_request **")
ANY: int = lib.HPC_ANY
element_size: Callable[[int], int] = lib.hpc_element_size

collective_at = _fast.collective_at  # these five take handles as addresses
message_at = _fast.message_at
request_test = _fast.request_test
request_wait = _fast.request_wait
request_free = _fast.request_free
work_test = lib.hpc_request_test
work_free = lib.hpc_request_free


def collective_call(
    what: int,
    kind: int | None,
    op: int,
    root: int,
    send: int,
    recv: int,
    count: int,
    send_counts: tuple[int, ...] | None,
    recv_counts: tuple[int, ...] | None,
) -> tuple[Any, Any, Any]:
    """Makes a call from the addresses of its arrays; 0 is no array. Returns it with the lengths that it points to."""
    sends = NULL if send_counts is None else ffi.new("uint64_t[]", send_counts)
    recvs = NULL if recv_counts is None else ffi.new("uint64_t[]", recv_counts)
    arrays = ffi.cast(_VOID, send), ffi.cast(_VOID, recv)
    return ffi.new(_CALL, (_CALL_BYTES, what, kind, op, root, *arrays, count, sends, recvs)), sends, recvs


def collective_run(context: Any, call: Any, timeout: float) -> None:
    collective(lambda seconds: lib.hpc_collective_run(context, call, seconds), timeout)


def quick_calls(
    context: Any, timeout: float, started: Sized, messages: Sized, cuts: list[tuple[int, type[BaseException]]]
) -> tuple[Callable[..., bool], Callable[..., bool], Callable[..., int | None]]:
    """Returns functions for plain calls of a context that has no started ones: collective(what, op, root, send, recv,
    timeout) and send(array, to, tag, timeout), which return False if the call is not plain; and recv(array, source,
    tag, timeout), which returns the sender or None. cuts gets each collective that an exception has cut short."""
    return _fast.caller(address_of(context), timeout, np.ndarray, error, started, messages, cuts, _OP_NAMES)


def new_request() -> Any:
    """Makes the place of an hpc_request, for a call that starts one."""
    return ffi.new(_REQUEST)


def collective_start(context: Any, call: Any, work: Any) -> None:
    check(lib.hpc_collective_start(context, call, work))


def send_start(context: Any, to: int, tag: int, address: int, count: int, kind: int | None, work: Any) -> None:
    check(lib.hpc_send_start(context, to, tag, ffi.cast(_VOID, address), count, kind, work))


def recv_start(context: Any, source: int, tag: int, address: int, count: int, kind: int | None, work: Any) -> None:
    check(lib.hpc_recv_start(context, source, tag, ffi.cast(_VOID, address), count, kind, work))


def received(work: Any) -> tuple[int, int]:
    """Returns the sender and the tag of the message that an ended recv has got."""
    found = ffi.new("hpc_received *")
    check(lib.hpc_request_received(work, found))
    return found.rank, found.tag


def work_wait(work: Any, timeout: float) -> None:
    wait(lambda seconds: lib.hpc_request_wait(work, seconds), timeout)


def work_wait_whole(work: Any, timeout: float) -> None:
    """Waits not in slices, for a thread other than the main one."""
    check(lib.hpc_request_wait(work, timeout))


def work_late(work: Any, waited: float) -> HpcommError | None:
    """Returns the Timeout of a work that another thread waits for; None if it has ended."""
    status = lib.hpc_request_wait(work, 0.0)
    return error(status, waited) if status < 0 else None
