"""spectral_gap: time and memory to compute a spectral gap, of graphs in which updates spread fast, and in which they
crawl.

Each graph is measured in a separate process, so that its peak memory (ru_maxrss) is the graph's.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hpcomm
from bench.common.launch import ROOT, cores
from bench.common.options import add_output, write
from hpcomm import graphs
from hpcomm.bench.rows import Row
from hpcomm.graphs import Graph

LIMIT = 300.0  # seconds for one graph
TOLERANCE = 1e-9  # of sigma_2, beside its formula
DEGREE = 4


def _torus(n: int) -> Graph:
    rows = next(rows for rows in range(math.isqrt(n), 0, -1) if n % rows == 0)
    return graphs.torus(rows, n // rows)


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "random_regular": lambda n: graphs.random_regular(n, DEGREE, seeds=1),
    "root_expander": lambda n: graphs.root_expander(n, DEGREE),
    "torus": _torus,
    "ring": graphs.ring,
    "ring_both": lambda n: graphs.ring(n, directed=False),
    "chain": graphs.chain,
}


def expected(name: str, graph: Graph) -> float:
    """Returns sigma_2 computed otherwise: by a Fourier transform if all ranks are alike, by LAPACK, or by SciPy's
    svds."""
    n = graph.size
    if name == "random_regular":
        from scipy.sparse.linalg import svds  # noqa: PLC0415

        return float(svds(graph.sparse(), k=2, ncv=60, return_singular_vectors=False, random_state=0).min())
    if name == "chain":  # where P^T P is tridiagonal
        from scipy.linalg import eigvalsh_tridiagonal  # noqa: PLC0415

        square = (graph.sparse().T @ graph.sparse()).tocsr()
        values = eigvalsh_tridiagonal(square.diagonal(), square.diagonal(1), select="i", select_range=(n - 2, n - 2))
        return math.sqrt(float(values[0]))
    row = np.zeros(n)
    row[[source for source, _ in graph.in_edges(0)]] = [weight for _, weight in graph.in_edges(0)]
    grid = row.reshape(len(row) // _columns(name, n), -1)
    return float(np.sort(np.abs(np.fft.fft2(grid)), axis=None)[-2])


def _columns(name: str, n: int) -> int:
    return n // next(rows for rows in range(math.isqrt(n), 0, -1) if n % rows == 0) if name == "torus" else n


def measure(name: str, n: int) -> Row:
    start = time.perf_counter()
    graph = GRAPHS[name](n)
    made = time.perf_counter()
    sigma = graphs.second_singular(graph)
    seconds = time.perf_counter() - made
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {
        "name": graph.name,
        "edges": int(graph.out_degrees.sum()),
        "make_seconds": made - start,
        "gap": 1 - sigma,
        "seconds": seconds,
        "peak_bytes": peak,
        "wrong": int(abs(sigma - expected(name, graph)) > TOLERANCE),
    }


def measured(name: str, n: int) -> Row:
    """measure in a separate process."""
    command = [sys.executable, "-m", "bench.asap.spectral_gap", "--one", name, "--ranks", str(n)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=ROOT)
    if ended.returncode != 0:
        raise SystemExit(f"the spectral gap of {name} with {n} ranks failed: {ended.stderr.strip()}")
    row: Row = json.loads(ended.stdout)
    return row


def table(document: Row) -> str:
    lines = [
        f"# spectral_gap: {document['ranks']} ranks on {document['cores']} cores, hpcomm {document['hpcomm']}",
        f"{'graph':34} {'edges':>8} {'gap':>10} {'make s':>8} {'gap s':>8} {'peak MiB':>9} {'#wrong':>7}",
    ]
    for row in document["rows"]:
        figures = f"{row['edges']:8} {row['gap']:10.3g} {row['make_seconds']:8.3f} {row['seconds']:8.3f}"
        lines.append(f"{row['name']:34} {figures} {row['peak_bytes'] >> 20:9} {row['wrong']:7}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.asap.spectral_gap", description="Time and memory of a gap.")
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="one after another, comma-separated")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    add_output(parser, plot="", progress=False)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one, options.ranks)))
        return 0
    names = [name.strip() for name in options.graphs.split(",")]
    unknown = [name for name in names if name not in GRAPHS]
    if unknown:
        parser.error(f"no such graph: {unknown[0]}; there are {', '.join(GRAPHS)}")
    document: dict[str, Any] = {
        "benchmark": "spectral_gap",
        "ranks": options.ranks,
        "cores": cores(),
        "hpcomm": hpcomm.__version__,
        "rows": [measured(name, options.ranks) for name in names],
    }
    text = json.dumps(document, indent=1)
    write(options, text)
    print(text if options.json else table(document), flush=True)
    return 1 if any(row["wrong"] for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
