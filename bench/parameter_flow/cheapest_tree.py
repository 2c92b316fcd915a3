"""cheapest_tree: the seconds to solve P3 of Parameter Flow, and how close its search comes to the optimum.

Every instance is solved by HiGHS and by the search alone. Costs are random, of points in a square, or of racks.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import hpcomm
from bench.common.launch import cores
from bench.common.options import add_output, add_quick, write
from hpcomm import InvalidArgument, graphs
from hpcomm.bench.rows import Row
from hpcomm.graphs.tree_costs import Costs, checked_costs
from hpcomm.graphs.tree_search import search

KINDS = ("random", "square", "racks")
SHAPES = ((1, 12), (2, 3), (2, 4), (2, 6), (3, 3), (3, 12))  # degree and depth
LEAVES = (0.01, 0.3)
AT_MOST = 1.1  # of the optimum, for the search


def instance(kind: str, size: int, seed: int) -> Costs:
    random = np.random.default_rng(seed)
    if kind == "random":
        return random.random((size, size))
    if kind == "square":
        at = random.random((size, 2))
        return checked_costs(np.linalg.norm(at[:, None] - at[None], axis=2))
    places = random.integers(0, random.integers(2, 6), size)
    return graphs.rack_costs([f"pod{place // 2}.rack{place}" for place in places])


def measure(kind: str, size: int, seeds: int, limit: float, quick: bool) -> Row:
    """Measures all shapes, leaf costs and seeds of a kind."""
    solved, searched, ratios, gaps, wrong = [], [], [], [], 0
    for seed, (degree, depth), leaf in itertools.product(range(seeds), SHAPES[-2:] if quick else SHAPES, LEAVES):
        costs = checked_costs(instance(kind, size, seed))
        start = time.perf_counter()
        try:
            best = graphs.cheapest_tree(costs, degree=degree, depth=depth, leaf=leaf, time_limit=limit)
        except InvalidArgument:  # no tree of this many ranks has this degree and depth
            continue
        solved.append(time.perf_counter() - start)
        start = time.perf_counter()
        found = search(costs, degree, depth, leaf, 0)
        searched.append(time.perf_counter() - start)
        ratios.append(graphs.tree_cost(found, costs, leaf) / best.cost)
        gaps.append(best.gap)
        wrong += best.bound > best.cost * (1 + 1e-9) or (best.optimal and ratios[-1] > AT_MOST)
    return {
        "costs": kind,
        "instances": len(solved),
        "optimal": sum(gap == 0 for gap in gaps),
        "gap": max(gaps, default=0.0),
        "seconds": statistics.median(solved) if solved else 0.0,
        "most_seconds": max(solved, default=0.0),
        "search_seconds": statistics.median(searched) if searched else 0.0,
        "search_missed": sum(ratio > 1 + 1e-6 for ratio in ratios),
        "search_ratio": max(ratios, default=1.0),
        "wrong": wrong,
    }


def table(document: Row) -> str:
    size = document["ranks"]
    lines = [
        f"# cheapest_tree: {size - 1} workers and a root on {document['cores']} cores, hpcomm {document['hpcomm']}",
        f"{'costs':8} {'trees':>6} {'optimal':>8} {'gap':>7} {'s':>7} {'most s':>7} {'search s':>9} {'missed':>7} "
        f"{'worst':>7} {'#wrong':>7}",
    ]
    for row in document["rows"]:
        lines.append(
            f"{row['costs']:8} {row['instances']:6} {row['optimal']:8} {row['gap']:7.3f} {row['seconds']:7.2f} "
            f"{row['most_seconds']:7.2f} {row['search_seconds']:9.2f} {row['search_missed']:7} "
            f"{row['search_ratio']:7.4f} {row['wrong']:7}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.parameter_flow.cheapest_tree", description="Solve P3 of Parameter Flow."
    )
    parser.add_argument("--ranks", type=int, default=13, help="the root among them")
    parser.add_argument("--costs", default=",".join(KINDS), help="one after another, comma-separated")
    parser.add_argument("--seeds", type=int, default=5, help="instances of each shape and leaf cost")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for an instance")
    add_quick(parser, "seven ranks, one seed and two shapes")
    add_output(parser, plot="", progress=False)
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.costs.split(",")]
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        parser.error(f"no such costs: {unknown[0]}; there are {', '.join(KINDS)}")
    size, seeds = (7, 1) if options.quick else (options.ranks, options.seeds)
    document: dict[str, Any] = {
        "benchmark": "cheapest_tree",
        "ranks": size,
        "cores": cores(),
        "hpcomm": hpcomm.__version__,
        "rows": [measure(name, size, seeds, options.limit, options.quick) for name in names],
    }
    text = json.dumps(document, indent=1)
    write(options, text)
    print(text if options.json else table(document), flush=True)
    return 1 if any(row["wrong"] for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
