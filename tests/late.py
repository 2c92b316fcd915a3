"""A device over tensors of the host whose copies come late: what torch computes stays on the CPU, and copies are made
by threads, those of one direction one behind the other, those of both against each other at random.

The target of a copy that is under way is full of NaN, and a source that changes meanwhile is an error; so is a copy
that nobody holds any more, as its source may be freed, and memory of the host that was not registered.
"""

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any

import torch

from hpcomm.torch import device
from hpcomm.torch.pages import ranges

_LATE = 2e-3  # seconds at most
_LONG = 20.0


class Copy:
    def __init__(self, wrong: list[str], target: Any, source: Any) -> None:
        self._wrong, self._target, self._source = wrong, target, source
        self._bytes = source.clone()
        self._took = self._stood = 0.0
        self._done = threading.Event()
        with torch.no_grad():
            target.fill_(float("nan"))

    def make(self) -> None:
        """Of the thread of a stream."""
        start = perf_counter()
        with torch.no_grad():
            if not same(self._source, self._bytes):
                self._wrong.append(f"the source of a copy of {tuple(self._source.shape)} changed under it")
            self._target.copy_(self._bytes)
        self._target = self._source = self._bytes = None
        self._took = perf_counter() - start
        self._done.set()

    def reached(self) -> bool:
        assert not self._wrong, self._wrong
        return self._done.is_set()

    def follow(self) -> None:
        """What is computed next comes after the copy: here this thread computes."""
        start = perf_counter()
        assert self._done.wait(_LONG), "a stream stands still"
        self._stood += perf_counter() - start
        assert not self._wrong, self._wrong

    def told(self) -> tuple[float, float] | None:
        return (self._took, self._stood) if self._done.is_set() else None


def same(a: Any, b: Any) -> bool:
    own, theirs = (one.contiguous().reshape(-1).view(torch.uint8) for one in (a, b))
    return bool(torch.equal(own, theirs))


class Held:
    """A copy, as hpcomm.torch holds it."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self.reached, self.follow, self.told = copy.reached, copy.follow, copy.told

    def __del__(self) -> None:
        if self._copy.told() is None:
            self._copy._wrong.append("a copy was let go before it had ended")


class Stream:
    """Makes copies one behind the other."""

    def __init__(self, seed: str) -> None:
        self._asked: SimpleQueue[Copy | threading.Event] = SimpleQueue()  # idle may come from a finalizer, amid an add
        self._draw = random.Random(seed)
        threading.Thread(target=self._work, daemon=True).start()

    def add(self, copy: Copy) -> Held:
        self._asked.put(copy)
        return Held(copy)

    def idle(self) -> None:
        reached = threading.Event()
        self._asked.put(reached)
        assert reached.wait(_LONG)

    def _work(self) -> None:
        while True:
            one = self._asked.get()
            if isinstance(one, threading.Event):
                one.set()
                continue
            if self._draw.random() < 0.7:
                sleep(self._draw.random() * _LATE)
            one.make()
            del one


class Late:
    apart = True

    def __init__(self, where: Any) -> None:
        seed = os.environ.get("HPC_TEST_SEED", "0")
        self._out, self._in = Stream(f"{seed} out"), Stream(f"{seed} in")
        self._known: list[tuple[int, int]] = []
        self._wrong: list[str] = []

    def register(self, arrays: Iterable[Any]) -> Callable[[], None]:
        own = list(arrays)
        found = list(ranges(own))
        self._known += found

        def release() -> None:
            self._out.idle()
            self._in.idle()
            own.clear()
            for one in found:
                self._known.remove(one)

        return release

    def host_like(self, tensor: Any) -> Any:
        found = torch.empty_like(tensor)
        self._known.append((found.data_ptr(), found.nbytes))
        return found

    def copy_out(self, target: Any, source: Any) -> Held:
        self._check(target)
        return self._out.add(Copy(self._wrong, target, source))

    def copy_in(self, target: Any, source: Any) -> Held:
        self._check(source)
        return self._in.add(Copy(self._wrong, target, source))

    def _check(self, tensor: Any) -> None:
        at = tensor.data_ptr()
        assert any(start <= at < start + nbytes for start, nbytes in self._known), "memory that was not registered"


def install() -> None:
    """From here on parameters of this process lie on a device of this kind."""
    device.KINDS["cpu"] = Late


@contextmanager
def installed() -> Iterator[None]:
    """Optimizers that are made in this block have a device of this kind."""
    before = device.KINDS["cpu"]
    install()
    try:
        yield
    finally:
        device.KINDS["cpu"] = before
