"""Runs all benchmarks of `hpcomm bench` one after another in the same ranks, and prints the verdict."""

import json
import sys
from pathlib import Path
from typing import Any

from . import TABLE, find, plots
from .harness import Bench, ending, measured, options_of

BELOW = 3  # the exit status if hpcomm reaches less of a bound than --at-least asks
MORE = ("-N", "9")  # options without --quick


def run(
    comm: Any,
    quick: bool = False,
    transport: str = "",
    as_json: bool = False,
    output_file: Path | None = None,
    plot: Path | None = None,
    at_least: float = 0.0,
) -> int:
    """Runs all benchmarks; all ranks call it, with comm from ranks.world(). Returns 1 if a result was wrong, BELOW if
    hpcomm reaches less than at_least of a bound, otherwise 0."""
    documents = {}
    for name in TABLE:
        benchmark = find(name)
        words = [*benchmark.quick, *(() if quick else MORE)]
        options = options_of(benchmark, [*words, "--transport", transport] if transport else words)
        options.json = as_json
        bench = Bench(options, comm)
        if why := benchmark.refuses(bench):
            bench.close()
            if bench.rank == 0:
                print(f"# {name} is left out: {why}", file=sys.stderr)
            continue
        documents[name] = measured(benchmark, bench)
    found: dict[str, Any] = {}
    if comm.Get_rank() == 0:
        found = {"wrong": sum(one["wrong"] for one in documents.values()), "benchmarks": documents}
        found["verdict"] = documents["limits"]["verdict"]
        _tell(found, as_json, output_file, plot)
    wrong, least = comm.bcast((found["wrong"], found["verdict"]["least"]) if found else None)
    return 1 if wrong else BELOW if least < at_least else 0


def _tell(found: dict[str, Any], as_json: bool, output_file: Path | None, plot: Path | None) -> None:
    text = json.dumps(found, indent=1)
    if plot is not None:
        plots.together(list(found["benchmarks"].values()), plot)
    if output_file is not None:
        output_file.write_text(text + "\n", encoding="utf-8")
    print(text if as_json else ending(found["wrong"], found["verdict"]), flush=True)
