"""chunk_sweep: the time of one push_pull by chunk size, number of queue pairs, and way to use several NICs.

These are PHub's section 4.6 with figure 16, and section 4.5. There is one exchange for each setting, all in the same
processes, and they take turns. With mapped memory, a push is one event for each core that owns some of the key,
whatever the chunks, and a core's chunks of a key are contiguous. So only two effects remain: small chunks spread the
work more evenly, and each chunk costs a row's bookkeeping. Over RDMA each core has a queue pair to every worker.

--servers 1 has PBox's arrangement, as the paper: the last rank only serves. Worker-by-interface uses one NIC for each
pair of ranks, so two ranks that both work and serve would use only one NIC; two workers and a server use two.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from bench.common import models
from bench.common.harness import Bench, Benchmark, Contender, main, nbytes
from bench.phub import chunk_plots
from bench.phub.placements import Crew
from hpcomm.bench import plots
from hpcomm.bench.push_pull import exchange, several
from hpcomm.bench.rows import Row
from hpcomm.bench.training import Task

KIB, MIB = 1 << 10, 1 << 20
CHUNKS = [KIB << shift for shift in range(2, 13)]  # 4 KiB to 4 MiB


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    options = bench.options
    keys, m = models.flat(size).keys, options.agg_iters or several(size)
    ways = [
        (chunk_plots.chunk_name(chunk, cores, affinity), affinity, cores, chunk)
        for affinity, cores, chunk in product(options.affinity, options.cores, options.chunks)
    ]
    if options.servers:
        crew, place = Crew(bench, options.servers, keys, m), "NCC" if options.servers == 1 else "NCS"
        return [
            crew.contender(name, place, chunk, options.servers, cores, affinity=affinity)
            for name, affinity, cores, chunk in ways
            if bench.wanted(name)
        ]
    job = Task(bench, keys, m)
    return [
        exchange(job, name, chunk, cores=cores, affinity=affinity)
        for name, affinity, cores, chunk in ways
        if bench.wanted(name)
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunks", type=lambda text: [nbytes(part) for part in text.split(",")], default=CHUNKS, help="e.g. 4K,32K,4M"
    )
    parser.add_argument(
        "--cores", type=lambda text: [int(part) for part in text.split(",")], default=[0],
        help="cores of each server, each with a queue pair to every worker, e.g. 1,2,4; 0: as many as can be spared",
    )  # fmt: skip
    parser.add_argument(
        "--affinity", type=lambda text: text.split(","), default=["key"],
        help="how several NICs are used, key,worker: one of each core, or one of each pair of ranks",
    )  # fmt: skip
    parser.add_argument("--servers", type=int, default=0, help="ranks that only serve, the last ones; 0: all do both")


def draw(document: Row, path: Path) -> bool:
    draws = [partial(chunk_plots.sweep, document=document), partial(chunk_plots.pairs, document=document)]
    return plots.figure(path, draws[: 1 + (len(document["options"]["cores"]) > 1)], plots.title(document))


BENCHMARK = Benchmark(
    name="chunk_sweep",
    about="push_pull of one flat buffer by chunks of different sizes.",
    dtype="float32",
    contenders=contenders,
    defaults={"minbytes": 32 * MIB, "maxbytes": 32 * MIB, "iters": 2, "agg_iters": 0},
    options=options,
    draw=draw,
)

if __name__ == "__main__":
    main(BENCHMARK)
