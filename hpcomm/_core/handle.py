"""Makes handles that free themselves, and the collectives that create them."""

import _thread
import threading
from collections.abc import Callable
from typing import Any

from .._ffi import ffi
from ..errors import HpcommError
from .calling import enter, entered
from .status import SLICE, check, error


def collective(call: Callable[[float], int], timeout: float) -> None:
    """Makes one call(timeout), not in slices: after a collective that failed, ranks no longer agree on the next one.
    For the main thread, another thread makes the call, so that Ctrl-C can end the wait."""
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
            outcome.append(error(status) if status < 0 else None)  # here: C has a last failure for each thread
        finally:
            del call  # this thread ends later, and must not keep a handle of the call open until then
            done.release()

    _thread.start_new_thread(run, ())
    while not done.acquire(timeout=SLICE):  # a slice each, as another thread may have got the signal
        pass
    if outcome[0] is not None:
        raise outcome[0]


def collecting(call: Callable[[Any, float], int]) -> Callable[[Any, float], None]:
    """Wraps a C collective into a function(handle, timeout)."""
    return lambda handle, timeout: collective(lambda seconds: call(handle, seconds), timeout)


def gathering(call: Callable[..., int]) -> Callable[[Any, bytes, int, float], list[bytes]]:
    """Wraps a C allgather into a function(handle, this rank's bytes, number of ranks, timeout)."""
    return lambda handle, data, size, timeout: _gathered(call, handle, data, size, timeout)


def _gathered(call: Callable[..., int], handle: Any, data: bytes, size: int, timeout: float) -> list[bytes]:
    n = len(data)
    received = ffi.new("char[]", max(1, n * size))
    collective(lambda seconds: call(handle, data, received, n, seconds), timeout)
    whole = bytes(ffi.buffer(received, n * size))
    return [whole[i * n : (i + 1) * n] for i in range(size)]


def owned(pointer: Any, free: Callable[[Any], None], keep: object) -> Any:
    """Makes a handle that frees itself. It holds keep until it is freed, because free may still read the source of a
    put."""

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
    """Calls the collective create(*given, seconds, out), and returns its handle, which frees itself."""
    made: list[Any] = []

    def call(seconds: float) -> int:
        out = ffi.new(f"{kind}*")
        status = create(*given, seconds, out)
        if status == 0:
            made.append(owned(out[0], free, keep))
        return status

    collective(call, timeout)
    return made[0]
