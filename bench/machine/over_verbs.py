"""The contenders beside hpcomm if it uses RDMA: plain verbs (nic.py) and perftest, in the turns of each benchmark."""

import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from bench.common.harness import Bench, Contender
from bench.machine import perftest
from bench.machine.nic import WAYS, Loop, Missing, Raw

if TYPE_CHECKING:
    from hpcomm.bench.put_bw import Stream
    from hpcomm.bench.put_lat import PingPong

PAGE_WORDS, SHIFTS = 512, 512  # as in bench.h
RING = 4 << 20  # bytes of the memory through which a bound streams
PIECES = 128  # pushes in a sample of push and pull
Words = NDArray[np.uint64]


def goes(bench: Bench) -> bool:
    """Returns whether hpcomm uses verbs for any peer."""
    return "verbs" in bench.transports


def note(bench: Bench, why: object) -> None:
    if bench.rank == 0:
        print(f"# {why}", file=sys.stderr, flush=True)


_raws: WeakKeyDictionary[Bench, Raw | None] = WeakKeyDictionary()


def raw(bench: Bench, room: int) -> Raw | None:
    """Returns one Raw for all sizes, closed with the benchmark; None, with a note, without plain verbs."""
    if bench not in _raws:
        try:
            if bench.size % 2:
                raise Missing(f"no bare verbs: {bench.size} ranks make no pairs")
            made = Raw(bench, room)
            bench.ends.append(made.close)
            _raws[bench] = made
        except Missing as why:
            _raws[bench] = None
            note(bench, why)
    return _raws[bench]


def has(bench: Bench, program: str) -> bool:
    found = all(bench.comm.allgather(perftest.available(program)))
    if not found:
        note(bench, perftest.MISSING)
    return found


# ---- put_lat -------------------------------------------------------------------------------------------------------


def trips(pair: "PingPong", room: int) -> list[Contender]:
    """Makes contenders: plain signals behind the same bytes, and ib_write_lat. If ranks outnumber cores, only the
    sleeping ones."""
    bench, plain = pair.bench, raw(pair.bench, room)
    if plain is None:
        return []

    def bare(name: str, way: int, sleeps: bool = False, singles: bool = False) -> list[Contender]:
        median = [0.0]

        def measure(n: int) -> tuple[list[float], int]:
            seconds, median[0], wrong = plain.trips(way, sleeps, pair.words, pair.count, pair.m, n)
            return seconds, wrong

        found = [Contender(f"bare verbs, {name} (bound)", "bound", measure)]
        return [*found, _median(pair, f"bare verbs, {name}", median)] if singles else found

    immediate = WAYS.index("write with immediate")
    asleep = bare("write with immediate, sleeping", immediate, sleeps=True)
    if bench.crowded:
        return asleep
    found = [each for way, name in enumerate(WAYS) for each in bare(name, way, singles=way == immediate)]
    if bench.size == 2 and bench.wanted("ib_write_lat (bound)") and has(bench, "ib_write_lat"):
        found = [*_write_lat(pair, plain), *found]
    return [*found, *asleep]


def _median(pair: "PingPong", name: str, median: list[float]) -> Contender:
    """Returns the second figure that the previous contender's turn left: its median of single trips."""
    return Contender(f"{name}, median trip (bound)", "bound", lambda n: (median[:] if pair.first else [], 0))


def _write_lat(pair: "PingPong", plain: Raw) -> list[Contender]:
    """Runs ib_write_lat once for two figures: its mean, and its median of single trips."""
    median = [0.0]

    def mean(n: int) -> tuple[list[float], int]:
        seconds, median[0] = perftest.trip_seconds(pair.bench, plain.port, pair.size, n * pair.m)
        return ([seconds] if pair.first else []), 0

    return [Contender("ib_write_lat (bound)", "bound", mean), _median(pair, "ib_write_lat", median)]


# ---- put_bw --------------------------------------------------------------------------------------------------------


def streams(stream: "Stream", source: Words, depth: int) -> list[Contender]:
    """Makes contenders: plain writes from registered memory to the same ring, and ib_write_bw with as many pending
    writes."""
    bench, plain = stream.bench, raw(stream.bench, max(bench_ring(stream.bench), stream.size))
    if plain is None:
        return []

    def copy(words: Words) -> float:
        plain.sources[: words.size] = words
        return plain.stream(stream.size, stream.slots, stream.m, depth)

    def write_bw(n: int) -> tuple[list[float], int]:
        seconds = [perftest.stream_seconds(bench, plain.port, stream.size, stream.m, depth) for _ in range(n)]
        return (seconds if stream.sender else []), 0

    found = [stream.contender("bare verbs (bound)", "bound", source, plain.arrived[: stream.words], copy)]
    if bench.wanted("ib_write_bw (bound)") and has(bench, "ib_write_bw"):
        found.insert(0, Contender("ib_write_bw (bound)", "bound", write_bw))
    return found


def bench_ring(bench: Bench) -> int:
    return int(max(bench.options.ring, bench.options.maxbytes))


# ---- limits of an exchange -----------------------------------------------------------------------------------------


def _numbered(bench: Bench, plain: Raw, size: int, m: int, play: Callable[[], float]) -> Callable[[bool, bool], Any]:
    """Plays one sample on the sending ranks: writes m times size bytes, the i-th from slot i of the sources to slot i
    of the other side. The words differ between samples."""
    words = bench.native.words(plain.room // 8 + SHIFTS * PAGE_WORDS)
    turn = count()

    def sample(sends: bool, receives: bool) -> tuple[float, int]:
        at = 2 * next(turn) % SHIFTS * PAGE_WORDS
        part = words[at : at + min(plain.room // size, m) * size // 8]
        if sends:
            plain.sources[: part.size] = part
        bench.comm.Barrier()
        seconds = play() if sends else 0.0
        bench.meet()
        wrong = bench.native.wrong(plain.arrived[: part.size], part) if receives and bench.options.check else 0
        return seconds, wrong

    return sample


def wire(bench: Bench, plain: Raw, name: str, size: int, both: bool, m: int) -> Contender:
    """Makes a contender of m plain writes on one queue pair, from even to odd ranks, or both ways at once."""
    sample = _numbered(bench, plain, size, m, lambda: plain.stream(size, plain.room // size, m))
    sends = both or plain.first

    def measure(n: int) -> tuple[list[float], int]:
        found = [sample(sends, both or not plain.first) for _ in range(n)]
        return ([seconds for seconds, _ in found] if sends else []), sum(wrong for _, wrong in found)

    return Contender(name, "bound", measure, bus=2.0 if both else 1.0)


def push_and_pull(bench: Bench, plain: Raw, name: str, size: int, pieces: int) -> Contender:
    """Makes a contender in which each rank writes m times to its neighbour, which answers each write by a write."""
    sample = _numbered(
        bench, plain, size, 2 * pieces, lambda: plain.exchange(size, plain.room // size, pieces) / (2 * pieces)
    )

    def measure(n: int) -> tuple[list[float], int]:
        found = [sample(True, True) for _ in range(n)]
        return [seconds for seconds, _ in found], sum(wrong for _, wrong in found)

    return Contender(name, "bound", measure, bus=2.0)


def copies(loop: Loop, name: str, nics: int, qps: int, size: int, m: int) -> Contender:
    """Makes a contender: the NICs of rank 0's host copy within its memory."""

    def measure(n: int) -> tuple[list[float], int]:
        if loop.bench.rank != 0:
            return [], 0
        found = [loop.copy(nics, qps, size, m) for _ in range(n)]
        return [seconds for seconds, _ in found], sum(wrong for _, wrong in found)

    return Contender(name, "bound", measure)


def _spinning(bench: Bench, name: str) -> Raw | None:
    """Returns the Raw; None if ranks outnumber cores, because plain verbs spin."""
    return None if bench.crowded or not bench.wanted(name) else raw(bench, RING)


def _writes(nbytes: float, piece: int) -> tuple[int, int]:
    """Returns the size and the number of the writes that carry nbytes; for more than 1024, it takes 1024 and scales."""
    size = max(8, min(piece, round(nbytes)) // 8 * 8)
    return size, max(1, min(1024, round(nbytes / size)))


def both_ways(bench: Bench, nbytes: float, piece: int) -> list[Contender]:
    """Times plain writes of nbytes from every rank to its neighbour at once."""
    name, (size, m) = "wire, both ways (bound)", _writes(nbytes, piece)
    plain = _spinning(bench, name)
    return [] if plain is None else [_scaled(wire(bench, plain, name, size, True, m), nbytes / size)]


def _answered(bench: Bench, nbytes: float, piece: int) -> list[Contender]:
    """Times the same bytes in push_pull's order: half are pushed, and each push is answered by as many bytes."""
    name, (size, m) = "wire, push and pull (bound)", _writes(nbytes, piece)
    plain = _spinning(bench, name)
    if plain is None:
        return []
    return [_scaled(push_and_pull(bench, plain, name, size, max(1, min(m // 2, PIECES))), nbytes / size)]


def exchange_limits(bench: Bench, nbytes: int, chunk: int) -> Sequence[Contender]:
    """Returns bounds of a sum over n ranks, each of which sends and receives 2(n-1)/n of all bytes: by plain writes of
    a chunk, and by the NICs' own copies, which both directions share (PHub, figure 17)."""
    each = 2 * (bench.size - 1) / bench.size * nbytes
    found = [*_answered(bench, each, chunk), *both_ways(bench, each, chunk)]
    if bench.wanted("NIC copies (bound)"):
        try:
            loop = Loop(bench, max(RING, chunk), 1)
        except Missing as why:
            note(bench, why)
            return found
        here, (size, m) = bench.hosts.count(bench.hosts[0]), _writes(each, chunk)
        made = _scaled(copies(loop, "NIC copies (bound)", max(1, loop.nics), 1, size, m), here * each / size)
        made.close = loop.close
        found.append(made)
    return found


def _scaled(contender: Contender, by: float) -> Contender:
    of_one = contender.measure

    def measure(n: int) -> tuple[list[float], int]:
        seconds, wrong = of_one(n)
        return [by * second for second in seconds], wrong

    contender.measure, contender.bus = measure, None
    return contender
