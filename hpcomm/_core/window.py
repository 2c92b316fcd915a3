"""Binds windows, lanes, puts, signals and events."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _fast
from .._ffi import ffi, lib
from .handle import collected
from .memory import address_of, mapped, memory_of
from .status import IN_PROGRESS, NULL, check, wait

put_notify = lib.hpc_put_notify
flush = lib.hpc_flush
put = _fast.put  # these four take handles by address_of
put_signal = _fast.put_signal
test_signal = _fast.test_signal
wait_signal = _fast.wait_signal


def window_create(context: Any, nbytes: int, signals: int, kind: str | None, timeout: float, keep: object) -> Any:
    agreed = NULL if kind is None else ffi.new("char[]", kind.encode())
    given = context, nbytes, signals, agreed
    return collected(lib.hpc_window_create, given, "hpc_window *", timeout, lib.hpc_window_free, keep)


def window_array(window: Any, rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Returns rank's part of the window as an array, or None if it cannot be mapped."""
    memory = memory_of(lib.hpc_window_memory(window, rank))
    if memory is None:
        return None
    return mapped([memory], address_of(lib.hpc_memory_data(memory)), shape, dtype, True)


def lane_create(context: Any, timeout: float, keep: object) -> Any:
    return collected(lib.hpc_lane_create, (context,), "hpc_lane *", timeout, lib.hpc_lane_free, keep)


def poll(context: Any, lane: Any) -> tuple[int, int, int] | None:
    """Takes the next event of a lane: (peer, imm, nbytes), or None if none has come."""
    event = ffi.new("hpc_event *")
    status = lib.hpc_poll(context, lane, event)
    if status == IN_PROGRESS:
        return None
    check(status)
    return event.peer, event.imm, event.nbytes


def wait_event(context: Any, lane: Any, timeout: float) -> tuple[int, int, int]:
    event = ffi.new("hpc_event *")
    wait(lambda seconds: lib.hpc_wait_event(context, lane, event, seconds), timeout)
    return event.peer, event.imm, event.nbytes
