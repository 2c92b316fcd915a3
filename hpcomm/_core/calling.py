"""Names the Python calls that contain C calls: errors and other ranks see these names for the waits inside."""

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
    """Returns the C object of a call's name, for enter. every: all ranks of the job must make this call."""
    return lib.hpc_calling_named(name.encode(), every)


def named(name: str, *, every: bool) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Makes a decorator that reports waits inside a function by this name. Inside another named call the outer name
    stays."""
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
    """Reports waits inside a with block by this name, like named."""
    before = enter(named_call(name, every=every))
    if before:
        enter(before)
    try:
        yield
    finally:
        enter(before)


def entered() -> Any:
    """Returns the named call in which this thread is; NULL if it is in none."""
    call = enter(NULL)
    enter(call)
    return call
