"""Turns failures into exceptions, and makes waits that Ctrl-C ends."""

import time
from collections.abc import Callable
from typing import Any

from .._ffi import ffi, lib
from ..errors import Culprit, Failure, HpcommError, InvalidArgument, from_failure

NULL: Any = ffi.NULL
IN_PROGRESS: int = lib.HPC_IN_PROGRESS
TIMED_OUT: int = lib.HPC_ERR_TIMEOUT
INVALID: int = lib.HPC_ERR_INVALID
SLICE = 0.1  # seconds that a C call may wait before Python looks for signals such as Ctrl-C
_STATES = {
    lib.HPC_CULPRIT_DIED: "died",
    lib.HPC_CULPRIT_LEFT: "left",
    lib.HPC_CULPRIT_STOPPED: "stopped",
    lib.HPC_CULPRIT_SILENT: "silent",
    lib.HPC_CULPRIT_COMPUTING: "computing",
    lib.HPC_CULPRIT_CIRCLE: "circle",
}


def culprits(array: Any, n: int) -> tuple[Culprit, ...]:
    return tuple(
        Culprit(c.rank, _STATES.get(c.state, "silent"), c.seconds, c.step, text(c.op))
        for c in (array[i] for i in range(n))
    )


def error(status: int, waited: float | None = None) -> HpcommError:
    """Returns the exception for the status of this thread's last C call. waited: seconds that a wait in slices took in
    all; after a timeout it makes C follow the chain of waits to its culprits."""
    last = lib.hpc_last_error()
    if last.status != status:  # nothing was recorded
        return from_failure(Failure(status, text(lib.hpc_status_text(status))))
    if waited is not None and status == TIMED_OUT:
        lib.hpc_follow_timeout(waited)
        last = lib.hpc_last_error()
    return from_failure(
        Failure(
            status,
            text(last.message),
            op=text(last.op),
            transport=text(last.transport),
            peer=last.peer,
            ranks=tuple(last.ranks[0 : last.n_ranks]) if last.n_ranks else (),
            waiting_for=tuple(last.waiting_for[0 : last.n_waiting]) if last.n_waiting else (),
            left=tuple(last.left[0 : last.n_left]) if last.n_left else (),
            culprits=culprits(last.culprits, last.n_culprits),
        )
    )


def is_unfinished() -> bool:
    """Returns whether this thread's last failure asks to repeat the previous call on the key first."""
    return bool(lib.hpc_last_error().detail == lib.HPC_DETAIL_UNFINISHED)


def is_slice_over(status: int) -> bool:
    """Returns whether only a wait's slice has timed out, so that the next slice may begin."""
    return status == TIMED_OUT and lib.hpc_last_error().detail != lib.HPC_DETAIL_HELD_UP


def check(status: int) -> None:
    if status < 0:
        raise error(status)


def checking(call: Callable[..., int]) -> Callable[..., None]:
    """Wraps a C function into one that raises if the status is negative."""
    return lambda *args: check(call(*args))


def waiting(call: Callable[[Any, float], int]) -> Callable[[Any, float], None]:
    """Wraps a C wait into a function(handle, timeout) that Ctrl-C can end."""
    return lambda handle, timeout: wait(lambda seconds: call(handle, seconds), timeout)


def wait(call: Callable[[float], int], timeout: float, waited: float = 0.0) -> None:
    """Calls call(seconds) in slices until it returns 0, fails, or timeout has passed; Ctrl-C can end it between slices.
    waited: seconds of timeout that have already passed."""
    left = timeout - waited
    deadline = time.monotonic() + left
    status = call(left if left < SLICE else SLICE)
    if status == 0:
        return
    before = lib.hpc_slices_limit(timeout)
    try:
        while is_slice_over(status):
            left = deadline - time.monotonic()
            if left <= 0:
                raise error(status, timeout)
            status = call(left if left < SLICE else SLICE)
            if status == 0:
                return
        raise error(status)
    finally:
        lib.hpc_slices_limit(before)


slices_limit = lib.hpc_slices_limit


def seconds(timeout: float | None, default: float) -> float:
    """Returns a user's timeout after a check; None means the default."""
    if timeout is None:
        return default
    try:
        if timeout >= 0:
            return min(float(timeout), 1e9)
    except TypeError:  # a text, a timedelta
        pass
    raise InvalidArgument(f"timeout is {timeout!r}: must be 0 or more seconds, or None for the context's default")


def text(chars: Any) -> str:
    return "" if chars == NULL else ffi.string(chars).decode("utf-8", "replace")


def names(kind: int) -> tuple[str, ...]:
    """Returns the names of all transports, rules or another kind of names, in C's order."""
    found: list[str] = []
    while (chars := lib.hpc_name(kind, len(found))) != NULL:
        found.append(text(chars))
    return tuple(found)
