"""Tensors on a CUDA device (or on ROCm, for which torch uses the same names). Copies use two separate streams, one for
each direction, and host memory that is registered with the driver."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import NotSupported
from ..log import logger
from .pages import ranges


class _Streamed:
    """A copy that runs on a stream."""

    __slots__ = ("_asked", "_begin", "_compute", "_end", "_source")

    def __init__(self, begin: torch.cuda.Event, end: torch.cuda.Event, source: Tensor, compute: Any) -> None:
        self._begin, self._end, self._source, self._compute = begin, end, source, compute
        self._asked: torch.cuda.Event | None = None  # the event at which the computation begins to wait for the copy

    def reached(self) -> bool:
        return bool(self._end.query())

    def follow(self) -> None:
        stream = torch.cuda.current_stream(self._compute.device)
        self._asked = _event(stream)
        stream.wait_event(self._end)

    def told(self) -> tuple[float, float] | None:
        if not self._end.query() or (self._asked is not None and not self._asked.query()):
            return None
        stood = 0.0 if self._asked is None else self._asked.elapsed_time(self._end)
        return self._begin.elapsed_time(self._end) * 1e-3, max(0.0, stood) * 1e-3


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


class Cuda:
    """A CUDA device."""

    apart = True

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._out, self._in = torch.cuda.Stream(where), torch.cuda.Stream(where)

    def register(self, arrays: Iterable[NDArray[Any]]) -> Callable[[], None]:
        own, cudart = list(arrays), torch.cuda.cudart()  # the arrays must stay mapped while they are registered
        done: list[int] = []
        for start, nbytes in ranges(own):
            status = int(cudart.cudaHostRegister(start, nbytes, 0))
            if status:
                logger.warning(
                    "%d bytes of host memory could not be registered with the driver (cudaHostRegister: error %d): "
                    "the driver copies to and from %s through bounce buffers, which takes longer; raise ulimit -l",
                    nbytes,
                    status,
                    self._where,
                )
                self._forget_error()
                break
            done.append(start)

        def release() -> None:
            if done:
                torch.cuda.synchronize(self._where)  # copies may still read or write the memory
            while done:
                cudart.cudaHostUnregister(done.pop())
            own.clear()

        return release

    def _forget_error(self) -> None:
        """Clears the error of the failed call. Otherwise the driver would report it at the next kernel."""
        with suppress(RuntimeError):
            torch.zeros(1, device=self._where)

    def host_like(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device="cpu", pin_memory=True)

    def copy_out(self, target: Tensor, source: Tensor) -> _Streamed:
        return self._copy(self._out, target, source)

    def copy_in(self, target: Tensor, source: Tensor) -> _Streamed:
        return self._copy(self._in, target, source)

    def _copy(self, stream: torch.cuda.Stream, target: Tensor, source: Tensor) -> _Streamed:
        if torch.cuda.is_current_stream_capturing():
            raise NotSupported(
                "the step is captured into a CUDA graph, which cannot wait for other ranks: capture the forward and "
                "backward passes without the hooks (optimizer.no_sync()), and call step() outside the graph"
            )
        compute = torch.cuda.current_stream(self._where)
        stream.wait_stream(compute)
        with torch.cuda.stream(stream):
            begin = _event(stream)
            target.copy_(source, non_blocking=True)
            return _Streamed(begin, _event(stream), source, compute)
