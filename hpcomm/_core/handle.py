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
    """One call(timeout), which cannot be cut into slices: a collective that failed leaves ranks that no longer agree.

    In the main thread, the one that Ctrl-C interrupts, another thread makes the call: Python's locks can be
    interrupted.
    """
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


def gathered(call: Callable[[bytes, Any, int, float], int], data: bytes, size: int, timeout: float) -> list[bytes]:
    n = len(data)
    received = ffi.new("char[]", max(1, n * size))
    collective(lambda seconds: call(data, received, n, seconds), timeout)
    whole = bytes(ffi.buffer(received, n * size))
    return [whole[i * n : (i + 1) * n] for i in range(size)]


def owned(pointer: Any, free: Callable[[Any], None], keep: object) -> Any:
    """A handle that frees itself, and only then lets go of keep: the last handle's end may read a put's source."""

    def release(handle: Any, _keep: object = keep) -> None:
        free(handle)

    return ffi.gc(pointer, release)


def collected(
    create: Callable[[float, Any], int], kind: str, timeout: float, free: Callable[[Any], None], keep: object = None
) -> Any:
    """The handle that a collective creates; it frees itself."""
    made: list[Any] = []

    def call(seconds: float) -> int:
        out = ffi.new(f"{kind}*")
        status = create(seconds, out)
        if status == 0:
            made.append(owned(out[0], free, keep))
        return status

    collective(call, timeout)
    return made[0]
