"""The names of calls above the C library, by which its waits are reported: in errors, and to other ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from .._ffi import lib
from .status import NULL

_P = ParamSpec("_P")
_R = TypeVar("_R")

enter = lib.hpc_calling_enter


def named_call(name: str, *, every: bool) -> Any:
    """The call of this name, for enter. every: all ranks of the job must make it."""
    return lib.hpc_calling_named(name.encode(), every)


def named(name: str, *, every: bool) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Gives a function its name in errors. A call inside another one has the name of the outer one."""
    call = named_call(name, every=every)

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def inside(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            before = enter(call)
            if before:
                enter(before)
            try:
                return function(*args, **kwargs)
            finally:
                enter(before)

        return inside

    return decorate


@contextmanager
def within(name: str, *, every: bool) -> Iterator[None]:
    """Gives a with block its name, as named."""
    before = enter(named_call(name, every=every))
    if before:
        enter(before)
    try:
        yield
    finally:
        enter(before)


def entered() -> Any:
    """The call that this thread is in; NULL: none."""
    call = enter(NULL)
    enter(call)
    return call
