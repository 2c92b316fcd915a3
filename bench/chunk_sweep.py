"""chunk_sweep: the time of one push_pull against the size of its chunks (PHub, section 4.6 and figure 16, left).

One exchange for each chunk size, all in the same processes in turns. Where memory is mapped a push is one event for
each core that owns some of the key, whatever the chunks, and a core's chunks of a key lie together. What is left:
small chunks deal more evenly, and each costs the bookkeeping of a row.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench import models, plots
from bench.harness import Bench, Benchmark, Contender, main, nbytes
from bench.push_pull import exchange, several
from bench.rows import Row
from bench.training import Job

KIB, MIB = 1 << 10, 1 << 20
CHUNKS = [KIB << shift for shift in range(2, 13)]  # 4 KiB to 4 MiB


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    job = Job(bench, models.flat(size).keys, bench.options.agg_iters or several(size))
    return [
        exchange(job, plots.chunk_name(chunk), chunk)
        for chunk in bench.options.chunks
        if bench.wanted(plots.chunk_name(chunk))
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunks", type=lambda text: [nbytes(part) for part in text.split(",")], default=CHUNKS, help="e.g. 4K,32K,4M"
    )


def draw(document: Row, path: Path) -> bool:
    return plots.figure(path, [lambda axis: plots.sweep(axis, document)], plots.title(document))


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
