"""cluster_bench: hpcomm between hosts, beside its links' rates and other libraries.

It makes four hosts on this machine, each with its own network and a link of 1 Gb/s (tests/cluster/hosts.py):

    put          two hosts: streams of put, beside iperf3 and a bare socket stream
    push_pull    four hosts (CS): beside the wire's bound at iperf3's rate, and beside bare sums by MPI and Gloo
    limits       two hosts of two ranks each: memory, loopback and wire in one table

push_pull also runs under each Python of --python, whose MPI and torch then are peers. A link lets a burst of 256 KiB
pass at once, so only streams and exchanges of 4 MiB and more are meaningful.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.common.launch import IPERF3_MISSING, ROOT, attend, library, module_of, mpirun
from bench.common.options import add_output, add_quick, write
from hpcomm.bench import plots
from hpcomm.bench.peers import has_iperf3
from hpcomm.bench.rows import Row, short_library

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import HEAD, Cluster, Unavailable

HOSTS = 4
UNABLE = 77  # exit status if the machine cannot run it
LIMIT = 600.0  # seconds for one group
OVER_ETHERNET = ("-genv", "MPIR_CVAR_CH4_NETMOD", "ofi", "-genv", "FI_PROVIDER", "tcp", "-genv", "FI_TCP_IFACE", "eth0")


@dataclass(frozen=True)
class Group:
    """One benchmark over some of the hosts. again: it also runs under the Pythons of --python."""

    key: str
    module: str
    hosts: int
    ranks_per_host: int
    arguments: tuple[str, ...]
    quick: tuple[str, ...]
    again: bool = False


FEW = ("-N", "1", "-w", "0")
SUMS = ("--only", "hpcomm C,hpcomm Python,wire,alone")
GROUPS = (
    Group(
        "put",
        "put_bw",
        2,
        1,
        ("-b", "64M", "-e", "256M", "-N", "7", "-n", "1"),
        ("-b", "8M", "-e", "8M", "-R", "8M", *FEW),
    ),
    Group(
        "push_pull",
        "push_pull",
        4,
        1,
        ("-s", "32M", "-N", "9", "-n", "1", *SUMS),
        ("-s", "4M", *FEW, *SUMS),
        again=True,
    ),
    Group("limits", "limits", 2, 2, ("-N", "5", "-n", "1"), ("-b", "8M", "-e", "8M", "-R", "8M", *FEW)),
)


def start(
    cluster: Cluster,
    group: Group,
    python: str,
    options: argparse.Namespace,
    folder: Path,
    settings: Sequence[str] = (),
) -> Row:
    """Runs one group to its end and returns its JSON. settings: further arguments of mpirun."""
    output = folder / "figures.json"
    output.unlink(missing_ok=True)
    arguments = group.quick if options.quick else group.arguments
    command = cluster.mpirun(cluster.hosts[: group.hosts], ranks_per_host=group.ranks_per_host, path=mpirun(python))
    command += [*(OVER_ETHERNET if "MPICH" in library(python) else ()), *settings]
    command += [python, "-m", module_of(group.module), *arguments, "-J", str(output)]
    if not options.json:
        ranks = f"{group.ranks_per_host} rank{'s' if group.ranks_per_host > 1 else ''} each"
        print(
            f"\n# {group.hosts} hosts, {ranks}: {module_of(group.module)}",
            *arguments,
            f"({python})",
            *settings,
            flush=True,
        )
    there = partial(cluster.popen, HEAD)
    status = attend(command, group.key, options.json, bar=options.progress is None, limit=LIMIT, popen=there)
    if not output.exists():
        raise SystemExit(f"{group.module} on {group.hosts} hosts under {python} ended with status {status}, no figures")
    return json.loads(output.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def measure(options: argparse.Namespace, chosen: Sequence[Group]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    pythons = [sys.executable, *options.python]
    turns = [(group, python) for group in chosen for python in (pythons if group.again else pythons[:1])]
    with tempfile.TemporaryDirectory() as folder, Cluster(HOSTS, rate=options.rate) as cluster:
        for i, (group, python) in enumerate(turns):
            key = group.key if group.key not in found else f"{group.key} @ {pythons.index(python)}"
            found[key] = start(cluster, group, python, options, Path(folder))
            if options.progress is not None:
                options.progress.write_text(f"{(i + 1) / len(turns):.4f}")
    return found


def panels(document: Row) -> list[plots.Draw]:
    draws: list[plots.Draw] = []
    for run in document["runs"].values():
        largest = max(row["size"] for row in run["rows"])
        rows = [row for row in run["rows"] if row["size"] == largest]
        what = f"{run['benchmark']} of {plots.named_size(largest)}"
        heading = f"{what}, {run['hosts']} hosts, {short_library(run['mpi'])}"
        draw_rows = plots.rates if run["benchmark"] == "limits" else plots.bars
        draws.append(partial(draw_rows, rows=rows, heading=heading))
    return draws


def draw(document: Row, path: Path) -> bool:
    return plots.figure(path, panels(document), f"hosts joined by links of {document['rate']}", columns=2)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ops.cluster_bench", description="hpcomm between hosts.")
    parser.add_argument("--rate", default="1gbit", help="rate of each host's link, as tc writes it")
    parser.add_argument("--python", action="append", default=[], help="another Python whose MPI, and torch, are peers")
    parser.add_argument("--only", default="", help=f"of {', '.join(group.key for group in GROUPS)}; comma-separated")
    add_quick(parser)
    add_output(parser)
    options = parser.parse_args(arguments)
    wanted = [part.strip() for part in options.only.split(",") if part.strip()]
    unknown = set(wanted) - {group.key for group in GROUPS}
    if unknown:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    document: dict[str, Any] = {"benchmark": "cluster_bench", "rate": options.rate, "runs": {}, "rows": []}
    try:
        if not has_iperf3():
            raise Unavailable(IPERF3_MISSING)
        document["runs"] = measure(options, [group for group in GROUPS if not wanted or group.key in wanted])
    except Unavailable as why:
        document["unable"] = f"no hosts here: {why}"
    document["rows"] = [row for run in document["runs"].values() for row in run["rows"]]
    text = json.dumps(document, indent=1)
    write(options, text)
    if options.json:
        print(text)
    if "unable" in document:
        print(f"cluster_bench: {document['unable']}", file=sys.stderr)
        return UNABLE
    if options.plot is not None:
        draw(document, options.plot)
    return 1 if any(row["wrong"] for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
