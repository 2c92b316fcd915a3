"""Plain libibverbs beside hpcomm: the loops of verbs_raw.c and loopback.c, if there are rdma-core's headers and a NIC.

Making an object of these classes is collective. It raises Missing, with one sentence, on all ranks or on none.
"""

import ctypes
import functools
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.common.harness import Bench
from bench.common.native import build_verbs, view
from hpcomm.bench.arrays import address

WHY = 256  # BENCH_WHY
DEPTH = 128  # BENCH_DEPTH, and perftest's own
WAYS = ("write", "write + write", "write with immediate", "write + send")

_int, _size, _int64, _double = ctypes.c_int, ctypes.c_size_t, ctypes.c_int64, ctypes.c_double
_pointer, _chars = ctypes.c_void_p, ctypes.c_char_p

CALLS: dict[str, tuple[Any, list[Any]]] = {
    "bench_address_size": (_size, []),
    "bench_raw_open": (_pointer, [_chars, _size, _double, _pointer, _pointer]),
    "bench_raw_connect": (_int, [_pointer, _pointer]),
    "bench_raw_close": (None, [_pointer]),
    "bench_raw_why": (_chars, [_pointer]),
    "bench_raw_memory": (_pointer, [_pointer]),
    "bench_raw_sources": (_pointer, [_pointer]),
    "bench_raw_port": (_chars, [_pointer, _pointer, _pointer, _pointer]),
    "bench_raw_lat": (
        _int64,
        [_pointer, _int, _int, _int, _int, _pointer, _size, _int, _int, _pointer, _pointer],
    ),
    "bench_raw_stream": (_int, [_pointer, _size, _int, _int, _int, _pointer]),
    "bench_raw_exchange": (_int, [_pointer, _size, _int, _int, _pointer]),
    "bench_loop_open": (_pointer, [_chars, _size, _int, _double, _pointer]),
    "bench_loop_close": (None, [_pointer]),
    "bench_loop_nics": (_int, [_pointer]),
    "bench_loop_why": (_chars, [_pointer]),
    "bench_loop_copy": (_int64, [_pointer, _int, _int, _size, _int, _int, _pointer]),
}


class Missing(RuntimeError):
    """Something that plain verbs need is missing here."""


@dataclass(frozen=True)
class Port:
    """A port as perftest names it. gid_index: -1 on InfiniBand. ip: of a RoCE port, otherwise ""."""

    device: str
    number: int
    gid_index: int
    ip: str


@functools.cache
def _library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(build_verbs()))
    for name, (result, arguments) in CALLS.items():
        call = getattr(loaded, name)
        call.restype, call.argtypes = result, arguments
    return loaded


def _all_or_none(bench: Bench, make: Callable[[], Any]) -> list[Any]:
    """Returns the results of make on all ranks; raises Missing on all ranks if make raised it on one."""
    try:
        mine: Any = make()
    except Missing as why:
        mine = why
    found: list[Any] = bench.comm.allgather(mine if not isinstance(mine, Missing) else ("", str(mine)))
    missing = [each[1] for each in found if isinstance(each, tuple)]
    if missing:
        raise Missing(missing[0])
    return found


def _ready(bench: Bench) -> None:
    def compiled() -> None:
        try:
            if bench.rank == 0:
                build_verbs()
        except FileNotFoundError as why:
            raise Missing(f"no bare verbs: {why}") from None

    _all_or_none(bench, compiled)


class Raw:
    """A queue pair between this rank and its neighbour (0 and 1, 2 and 3, ...); each may write `room` bytes of the
    other."""

    def __init__(self, bench: Bench, room: int) -> None:
        self.bench, self.peer, self.first = bench, bench.rank ^ 1, bench.rank % 2 == 0
        self._at: int | None = None
        _ready(bench)
        self.room = -(-room // 64) * 64
        there = _all_or_none(bench, self._open)[self.peer]
        self._check(_library().bench_raw_connect(self._at, there))
        self.sources = view(_library().bench_raw_sources(self._at), self.room // 8, np.uint64)
        self.arrived = view(_library().bench_raw_memory(self._at), self.room // 8, np.uint64)

    def _open(self) -> bytes:
        why = ctypes.create_string_buffer(WHY)
        here = ctypes.create_string_buffer(_library().bench_address_size())
        device = self.bench.options.devices.partition(",")[0].encode() or None
        self._at = _library().bench_raw_open(device, self.room, self.bench.options.timeout, here, why)
        if self._at is None:
            raise Missing(f"no bare verbs: {why.value.decode()}")
        return here.raw

    def _check(self, status: int) -> int:
        if status < 0:
            raise RuntimeError(f"rank {self.bench.rank}: {_library().bench_raw_why(self._at).decode()}")
        return status

    @property
    def port(self) -> Port:
        number, index, gid = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
        name = _library().bench_raw_port(self._at, ctypes.byref(number), ctypes.byref(index), gid)
        ip = ipaddress.IPv6Address(bytes(gid)).ipv4_mapped
        return Port(name.decode(), number.value, index.value, str(ip) if index.value >= 0 and ip else "")

    def trips(
        self, way: int, sleeps: bool, words: NDArray[np.uint64], count: int, m: int, n: int
    ) -> tuple[list[float], float, int]:
        """Times n samples of m round trips of count words; returns also the median of single trips and the wrong
        answers (bench_raw_lat)."""
        seconds, trips = np.zeros(n), np.zeros(n * m)
        wrong = self._check(
            _library().bench_raw_lat(
                self._at,
                way,
                sleeps,
                self.bench.rank,
                self.first,
                address(words),
                count,
                m,
                n,
                address(seconds),
                address(trips),
            )
        )
        return (seconds.tolist() if self.first else []), float(np.median(trips)), wrong

    def stream(self, nbytes: int, slots: int, m: int, depth: int = DEPTH) -> float:
        """Returns the seconds per write of m writes of sources, at most depth of them pending, until the last is
        acknowledged."""
        seconds = np.zeros(1)
        self._check(_library().bench_raw_stream(self._at, nbytes, slots, m, depth, address(seconds)))
        return float(seconds[0])

    def exchange(self, nbytes: int, slots: int, pieces: int) -> float:
        """Returns the seconds of so many writes to the other side, each answered by one; both sides at once."""
        seconds = np.zeros(1)
        self._check(_library().bench_raw_exchange(self._at, nbytes, slots, pieces, address(seconds)))
        return float(seconds[0])

    def close(self) -> None:
        _library().bench_raw_close(self._at)
        self._at = None


class Loop:
    """The NICs of rank 0's host, which copy within rank 0's memory. On other ranks only the number of NICs is known."""

    def __init__(self, bench: Bench, ring: int, qps: int) -> None:
        self.bench, self._at = bench, None
        _ready(bench)
        why = ctypes.create_string_buffer(WHY)

        def make() -> int:
            if bench.rank != 0:
                return 0
            devices = bench.options.devices.encode() or None
            self._at = _library().bench_loop_open(devices, ring, qps, bench.options.timeout, why)
            if self._at is None:
                raise Missing(f"no loopback: {why.value.decode()}")
            return int(_library().bench_loop_nics(self._at))

        self.nics: int = _all_or_none(bench, make)[0]

    def copy(self, nics: int, qps: int, nbytes: int, m: int, depth: int = DEPTH) -> tuple[float, int]:
        """Returns the seconds per message of m messages shared by some NICs, and the number of wrong words."""
        seconds = np.zeros(1)
        wrong = _library().bench_loop_copy(self._at, nics, qps, nbytes, m, depth, address(seconds))
        if wrong < 0:
            raise RuntimeError(f"loopback: {_library().bench_loop_why(self._at).decode()}")
        return float(seconds[0]), int(wrong)

    def close(self) -> None:
        _library().bench_loop_close(self._at)
        self._at = None
