"""Handles that free themselves, and the collectives that make them."""

import _thread
import threading
from collections.abc import Callable
from typing import Any

from .._ffi import ffi
from ..errors import HpcommError
from .calling import enter, entered
from .status import SLICE, check, error


def collective(call: Callable[[float], int], timeout: float) -> None:
    """Makes one call(timeout), without slices: a collective that fails leaves ranks that no longer agree. For the main
    thread another one makes the call, as Ctrl-C can interrupt Python's locks."""
    if threading.current_thread() is not threading.main_thread():
        check(call(timeout))
        return
    outcome: list[HpcommError | None] = []
    call_here = entered()
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        nonlocal call
        try:
            enter(call_here)
            status = call(timeout)
            outcome.append(error(status) if status < 0 else None)  # here: the last failure is this thread's
        finally:
            del call  # this thread ends a little later, and must not keep a handle of the call open until then
            done.release()

    _thread.start_new_thread(run, ())
    while not done.acquire(timeout=SLICE):  # the signal may have interrupted another thread
        pass
    if outcome[0] is not None:
        raise outcome[0]


def collecting(call: Callable[[Any, float], int]) -> Callable[[Any, float], None]:
    """A collective of C as a function of its handle and a timeout."""
    return lambda handle, timeout: collective(lambda seconds: call(handle, seconds), timeout)


def gathering(call: Callable[..., int]) -> Callable[[Any, bytes, int, float], list[bytes]]:
    """An allgather of C as a function of its handle, this rank's bytes, the number of ranks, and a timeout."""
    return lambda handle, data, size, timeout: _gathered(call, handle, data, size, timeout)


def _gathered(call: Callable[..., int], handle: Any, data: bytes, size: int, timeout: float) -> list[bytes]:
    n = len(data)
    received = ffi.new("char[]", max(1, n * size))
    collective(lambda seconds: call(handle, data, received, n, seconds), timeout)
    whole = bytes(ffi.buffer(received, n * size))
    return [whole[i * n : (i + 1) * n] for i in range(size)]


def owned(pointer: Any, free: Callable[[Any], None], keep: object) -> Any:
    """A handle that frees itself, and only then lets go of keep: its end may read a put's source."""

    def release(handle: Any, _keep: object = keep) -> None:
        free(handle)

    return ffi.gc(pointer, release)


def collected(
    create: Callable[..., int],
    given: tuple[Any, ...],
    kind: str,
    timeout: float,
    free: Callable[[Any], None],
    keep: object = None,
) -> Any:
    """The handle that the collective create(*given, seconds, out) makes; it frees itself."""
    made: list[Any] = []

    def call(seconds: float) -> int:
        out = ffi.new(f"{kind}*")
        status = create(*given, seconds, out)
        if status == 0:
            made.append(owned(out[0], free, keep))
        return status

    collective(call, timeout)
    return made[0]
