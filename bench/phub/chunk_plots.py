"""Draws the figures of chunk_sweep: time over chunk size, and exchanges a second over queue pairs."""

from itertools import product
from typing import Any

from hpcomm.bench import plots
from hpcomm.bench.rows import Row


def chunk_name(chunk: int, cores: int = 0, affinity: str = "key") -> str:
    """The contender of chunk_sweep."""
    return f"hpcomm Python, chunks of {plots.named_size(chunk)}{_way(cores, affinity)}"


def _way(cores: int, affinity: str) -> str:
    pairs = f", {cores} QP{'' if cores == 1 else 's'}" if cores else ""
    return pairs + (", by worker" if affinity == "worker" else "")


def sweep(axis: Any, document: Row) -> None:
    """Draws time over chunk size for chunk_sweep's largest buffer; a line for each number of queue pairs and
    affinity."""
    options = document["options"]
    size = max(row["size"] for row in document["rows"])
    found = {row["name"]: row for row in document["rows"] if row["size"] == size}
    for cores, affinity in product(options.get("cores", [0]), options.get("affinity", ["key"])):
        points = [(chunk, found.get(chunk_name(chunk, cores, affinity))) for chunk in sorted(options["chunks"])]
        own = [(chunk, row) for chunk, row in points if row is not None]
        if not own:
            continue
        at, rows = zip(*own, strict=True)
        low, high = ([1e3 * of(row["cycles"]) for row in rows] for of in (min, max))
        label = _way(cores, affinity).removeprefix(", ") or None
        drawn = axis.plot(at, [plots.milliseconds(row) for row in rows], "-o", linewidth=2, label=label)
        axis.fill_between(at, low, high, alpha=0.2, color=drawn[0].get_color())
        if label:
            axis.legend(fontsize="small")
    axis.set_xscale("log", base=2)
    plots.ticks(axis, options["chunks"])
    axis.set_ylim(bottom=0)
    axis.set(title=f"push_pull of {plots.named_size(size)} (band: all cycles)", xlabel="chunk", ylabel="time (ms)")
    axis.grid(alpha=0.3)


def pairs(axis: Any, document: Row) -> None:
    """Draws the exchanges a second of all workers over the number of queue pairs for chunk_sweep's largest buffer
    (PHub, figure 16, right); a line for each chunk size and affinity."""
    options = document["options"]
    size, workers = max(row["size"] for row in document["rows"]), document["ranks"] - options.get("servers", 0)
    found = {row["name"]: row for row in document["rows"] if row["size"] == size}
    for affinity, chunk in product(options.get("affinity", ["key"]), sorted(options["chunks"])):
        points = [(cores, found.get(chunk_name(chunk, cores, affinity))) for cores in sorted(options["cores"])]
        own = [(cores, 1e3 * workers / plots.milliseconds(row)) for cores, row in points if row is not None]
        if own:
            axis.plot(*zip(*own, strict=True), "-o", linewidth=2, label=plots.named_size(chunk) + _way(0, affinity))
    axis.set_xticks(sorted(options["cores"]))
    axis.set_ylim(bottom=0)
    title = f"push_pull of {plots.named_size(size)} by {workers} workers"
    axis.set(title=title, xlabel="queue pairs of a worker", ylabel="exchanges/s, all workers")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
