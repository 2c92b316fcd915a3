"""tenants: several exchanges in one process, between two ranks over shared memory.

The ranks run the C program tenants.c. Its arrangements take turns in one run, and a ratio compares blocks of one round.

- idle: push_pull of 8 bytes and of 1 MiB by one exchange: alone, beside an idle exchange of its context, and beside an
  idle exchange of another context. *alone, again* shows how much equal blocks differ.
- busy: the bytes of two exchanges, each driven by one thread of both ranks, and Jain's index of their fairness.
- ping: push_pull of 8 bytes by one thread beside another thread that moves 256 MiB through a second exchange. Its peer
  is a futex ping between two processes, each with another thread that copies 256 MiB.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import hpcomm
from bench.common.launch import cores
from bench.common.native import BUILD, compile_c
from bench.common.options import add_output, write
from hpcomm.bench.rows import Row

MODES = ("inline", "thread")
ALONE, PEER = "alone", "futex ping beside copies"
ONE_BUSY, JUDGED = "one alone", "push_pull beside another"
SHORTER = 10  # an idle block is a tenth of a block, and an idle row has three times as many rounds
MORE_ROUNDS = 3
ARRANGEMENTS = {"idle": 8, "busy": 4, "ping": 4}


def rounds_of(row: str, rounds: int) -> int:
    return rounds * MORE_ROUNDS if row == "idle" else rounds


def blocks(program: Path, row: str, mode: str, options: argparse.Namespace) -> Iterator[Row]:
    """Runs two ranks, and yields the lines that they print. Raises SystemExit if they fail."""
    seconds = options.seconds / (SHORTER if row == "idle" else 1)
    command = [str(program), row, mode, f"{seconds:g}", options.cpus]
    command += ["-N", str(rounds_of(row, options.rounds)), "-e", str(options.mib << 20)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ranks:
        assert ranks.stdout is not None
        for line in ranks.stdout:
            yield {"mode": mode, **json.loads(line)}
    if ranks.returncode != 0:
        raise SystemExit(f"tenants: {row} with progress {mode} failed")


def ratio(of: Sequence[Row], to: Sequence[Row], part: str) -> list[float]:
    """Returns the ratio of two medians, and the smallest and largest ratio of one round."""
    pairs = [a[part] / b[part] for a, b in zip(of, to, strict=True)]
    return [median(of, part) / median(to, part), min(pairs), max(pairs)]


def median(of: Sequence[Row], part: str) -> float:
    return float(statistics.median(row[part] for row in of))


def by_name(told: Iterable[Row]) -> dict[str, list[Row]]:
    """Returns the blocks of each arrangement, in the order of rounds."""
    found: dict[str, list[Row]] = {}
    for row in told:
        found.setdefault(row["name"], []).append(row)
    return found


def jain(shares: Sequence[float]) -> float:
    """Returns Jain's index of fairness: 1 for equal shares, 1/n if one of n has all."""
    squares = sum(share**2 for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares > 0 else 0.0


def fairness(row: Row) -> float:
    """Returns Jain's index of each exchange's bytes over its weight."""
    return jain([part / weight for part, weight in zip(row["bytes"], row["weights"], strict=True)])


def idle_rows(told: Sequence[Row]) -> Iterator[Row]:
    for size in sorted({row["size"] for row in told}):
        named = by_name(row for row in told if row["size"] == size)
        for name in sorted(named):
            p50 = median(named[name], "p50")
            yield {"name": name, "size": size, "p50": p50, "ratio": ratio(named[name], named[ALONE], "p50")}


def busy_rows(told: Sequence[Row]) -> Iterator[Row]:
    for name, rounds in sorted(by_name(told).items()):
        made: Row = {"name": name, "weights": rounds[0]["weights"], "seconds": sum(row["seconds"] for row in rounds)}
        made["bytes"] = [sum(row["bytes"][i] for row in rounds) for i in range(2)]
        if name != ONE_BUSY:
            made["ratio"] = made["bytes"][1] / max(made["bytes"][0], 1)
            made["jain"], made["least_jain"] = fairness(made), min(map(fairness, rounds))
        yield made


def ping_rows(told: Sequence[Row], of_a_slice: float) -> Iterator[Row]:
    named = by_name(told)
    most = {"p50": 2 * median(named[PEER], "p50"), "p99": 2 * median(named[PEER], "p99") + of_a_slice}
    for name, rounds in sorted(named.items()):
        row: Row = {part: median(rounds, part) for part in ("p50", "p99", "mean", "most", "beside")}
        row |= {f"{part}_ratio": ratio(rounds, named[PEER], part) for part in ("p50", "p99")}
        yield {"name": name, "slice": of_a_slice, "limits": most, **row}


def rows_of(row: str, mode: str, told: Sequence[Row]) -> Iterator[Row]:
    """Returns the rows of the document: one for each arrangement."""
    lines = [line for line in told if line["row"] == row]
    wrong = sum(line["wrong"] for line in told if line["row"] == "wrong")
    if row == "idle":
        found = idle_rows(lines)
    elif row == "busy":
        found = busy_rows(lines)
    else:
        found = ping_rows(lines, next(line["seconds"] for line in told if line["row"] == "slice"))
    for made in found:
        yield {"row": row, "mode": mode, "wrong": wrong, **made}


def spread(of: Sequence[float]) -> str:
    return f"{of[0]:.3f} [{of[1]:.3f}, {of[2]:.3f}]"


def idle_table(rows: Sequence[Row]) -> Iterator[str]:
    yield "# idle: median push_pull; ratios to alone"
    yield f"{'progress':8} {'size (B)':>8} {'beside':28} {'us':>9}   ratio"
    for row in rows:
        time = f"{1e6 * row['p50']:9.3f}"
        yield f"{row['mode']:8} {row['size']:8} {row['name']:28} {time}   {spread(row['ratio'])}"


def busy_table(rows: Sequence[Row]) -> Iterator[str]:
    yield "# busy: GB/s of each exchange; second / first; Jain's index of bytes over weights, and the least of a round"
    yield f"{'progress':8} {'exchanges':22} {'first':>9} {'second':>9} {'ratio':>9} {'Jain':>9} {'least':>9}"
    for row in rows:
        rates = " ".join(f"{1e-9 * part / row['seconds']:9.3f}" for part in row["bytes"])
        shares = " ".join(f"{row[part]:9.4f}" for part in ("ratio", "jain", "least_jain") if part in row)
        yield f"{row['mode']:8} {row['name']:22} {rates} {shares}".rstrip()


def ping_table(rows: Sequence[Row]) -> Iterator[str]:
    yield f"# ping: us of 8 bytes; GB/s of the thread beside it; ratios to {PEER}"
    heads = " ".join(f"{part:>9}" for part in ("p50", "p99", "mean", "most"))
    yield f"{'progress':8} {'operation':25} {heads} {'GB/s':>6}   p50 ratio, p99 ratio"
    for row in rows:
        times = " ".join(f"{1e6 * row[part]:9.2f}" for part in ("p50", "p99", "mean", "most"))
        ratios = f"{spread(row['p50_ratio'])}, {spread(row['p99_ratio'])}"
        yield f"{row['mode']:8} {row['name']:25} {times} {1e-9 * row['beside']:6.2f}   {ratios}"
        if row["name"] == JUDGED:
            limits = " ".join(f"{1e6 * row['limits'][part]:9.2f}" for part in ("p50", "p99"))
            yield f"{'':8} {'asked: at most':25} {limits}   with a slice of {1e6 * row['slice']:.2f}"


TABLES = {"idle": idle_table, "busy": busy_table, "ping": ping_table}


def table(document: Row) -> str:
    wrong = sum(row["wrong"] for row in document["rows"])
    before, after = document["load"]
    lines = [
        f"# tenants: 2 ranks on {document['cores']} cores, shm, CPUs: {document['cpus']}, hpcomm {document['hpcomm']}",
        f"# load of the machine before {before:.2f}, after {after:.2f}; wrong {wrong}",
    ]
    for kind, lines_of in TABLES.items():
        rows = [row for row in document["rows"] if row["row"] == kind]
        lines += lines_of(rows) if rows else []
    return "\n".join(lines)


def chosen(text: str, among: Sequence[str]) -> list[str]:
    found = text.split(",")
    if not set(found) <= set(among):
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(among)}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.machine.tenants", description="Several exchanges in one process."
    )
    parser.add_argument(
        "--rows", type=lambda text: chosen(text, list(ARRANGEMENTS)), default=list(ARRANGEMENTS), help="idle,busy,ping"
    )
    parser.add_argument(
        "--modes", type=lambda text: chosen(text, MODES), default=list(MODES), help="progress: inline,thread"
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of a block; an idle one has a tenth")
    parser.add_argument(
        "--rounds", type=int, default=4, help="blocks of each arrangement; idle ones have three times as many"
    )
    parser.add_argument(
        "--cpus",
        choices=("own", "any"),
        default="own",
        help="own: threads of a rank that call hpcomm, ping or copy share one CPU; any: the scheduler moves them",
    )
    parser.add_argument("--mib", type=int, default=256, help="MiB of the large exchange; of busy ones a quarter")
    add_output(parser, plot="")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.rounds < 1 or options.mib < 1:
        parser.error("--seconds, --rounds and --mib must be positive")
    program = BUILD / "tenants"
    compile_c(program, ["machine/tenants.c"], libraries=["-lpthread"])
    rows: list[Row] = []
    told: list[Row] = []
    load = [os.getloadavg()[0]]
    total = len(options.modes) * sum(ARRANGEMENTS[row] * rounds_of(row, options.rounds) for row in options.rows)
    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("tenants", total=total)
        for row in options.rows:
            for mode in options.modes:
                here: list[Row] = []
                for block in blocks(program, row, mode, options):
                    here.append(block)
                    if "round" in block:
                        told.append(block)
                        shown.update(task, advance=1, description=f"{row}, {mode}")
                        if options.progress is not None:
                            options.progress.write_text(f"{len(told) / total:.4f}")
                rows += rows_of(row, mode, here)
    document: Row = {
        "benchmark": "tenants",
        "cores": cores(),
        "cpus": options.cpus,
        "hpcomm": hpcomm.__version__,
        "load": [*load, os.getloadavg()[0]],
        "rows": rows,
        "blocks": told,
    }
    text = json.dumps(document, indent=1)
    write(options, text)
    print(text if options.json else table(document), flush=True)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
