"""loopback: the rate at which NICs copy within memory, beside the wire and a plain copy: the limits of RDMA.

This is the paper's microbenchmark (PHub, section 4.7). NICs copy between two regions of one process, so only their path
to memory counts. On PBox it had the rate of all wires together, which showed that this path was the limit. Here it runs
with 1, 2, 4 and 8 queue pairs, with one NIC and with all, for messages of 4 KiB to 4 MiB.
"""

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from bench.common.harness import Bench, Benchmark, Contender, main, nbytes
from bench.machine.limits import Blocks
from bench.machine.nic import Loop, Missing
from bench.machine.over_verbs import copies, raw, wire
from bench.ops.put_bw import hpcomm_c, own_words
from hpcomm.bench import plots
from hpcomm.bench.put_bw import Stream
from hpcomm.bench.rows import Row

QUEUE_PAIRS = (1, 2, 4, 8)
UNABLE = 77  # exit status if the machine cannot run it

# Made once for all sizes.
_loops: WeakKeyDictionary[Bench, Loop] = WeakKeyDictionary()
_blocks: WeakKeyDictionary[Bench, Blocks] = WeakKeyDictionary()
_ours: WeakKeyDictionary[Bench, tuple[Any, ...]] = WeakKeyDictionary()


def loop_of(bench: Bench) -> Loop:
    if bench not in _loops:
        try:
            made = Loop(bench, max(bench.options.ring, bench.options.maxbytes), max(QUEUE_PAIRS))
        except Missing as why:
            raise SystemExit(f"loopback: {why}" if bench.rank == 0 else UNABLE) from None
        bench.ends.append(made.close)
        _loops[bench] = made
    return _loops[bench]


def several(number: int, of: str) -> str:
    return f"{number} {of}{'' if number == 1 else 's'}"


def ours(bench: Bench, size: int, room: int) -> Contender:
    """Makes contenders by which hpcomm copies from one window to another; context and windows are made once."""
    if bench not in _ours:
        native = bench.connected("verbs")
        _ours[bench] = native, native.window(room, 1), own_words(native, room)
    native, window, source = _ours[bench]
    return hpcomm_c(Stream(bench, size), "hpcomm C", source, window, waits=False, native=native)


def beside(bench: Bench, size: int, m: int, largest: int) -> list[Contender]:
    """Makes the contenders beside it: a plain copy and, if there is another rank, the wire and hpcomm over it."""
    if bench not in _blocks:
        _blocks[bench] = Blocks(bench, largest)
    blocks = copy.copy(_blocks[bench])
    blocks.size = size
    found = [blocks.copy("memory copy, one rank (bound)", everybody=False)]
    plain = raw(bench, largest) if bench.size > 1 else None
    if plain is None:
        return found
    found.append(wire(bench, plain, "wire, one way (bound)", size, both=False, m=m))
    found.append(wire(bench, plain, "wire, both ways (bound)", size, both=True, m=m))
    return [*found, ours(bench, size, blocks.room)] if bench.wanted("hpcomm C") else found


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    loop, largest = loop_of(bench), max(bench.options.ring, bench.options.maxbytes)
    m = max(1, largest // size)
    return [
        copies(loop, f"copy by {several(nics, 'NIC')}, {several(qps, 'queue pair')} (bound)", nics, qps, size, m)
        for nics in dict.fromkeys((1, loop.nics))
        for qps in QUEUE_PAIRS
    ] + beside(bench, size, m, largest)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-R", "--ring", type=nbytes, default=8 << 20, help="bytes that the copies rotate through")


def draw(document: Row, path: Path) -> bool:
    def lines(axis: Any) -> None:
        plots.over_size(axis, document["rows"], "limits of RDMA", "GB/s", plots.gigabytes)
        axis.set_yscale("log")  # memory is far faster than the others

    return plots.figure(path, [lines], plots.title(document))


BENCHMARK = Benchmark(
    name="loopback",
    about="What NICs copy within one process's memory, beside the wire and a memory copy.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 4 << 10, "maxbytes": 4 << 20, "iters": 1, "run_cycles": 7},
    options=options,
    draw=draw,
)

if __name__ == "__main__":
    main(BENCHMARK)
