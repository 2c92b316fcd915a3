"""racks: a job whose workers stand in N racks of two workers and a hub each (PHub, figure 19).

    python -m bench.phub.racks                     # 1, 2 and 4 racks
    python -m bench.phub.racks --racks 1,2 --uplink 100mbit

The hosts are namespaces of this machine with links of 1 Gb/s (tests/cluster/hosts.py); the hosts of a rack share one
link to the other racks. Each worker and each hub has a host. Three exchanges of the same array take turns:

    ring     the hub of each rack folds for it, and folds and parameters go around a ring of hubs, as in the paper
    sharded  the hub of each rack folds for it, and sends the fold to the hub that owns the chunk
    flat     no racks: all workers push to all hubs

A step is one push_pull by all workers, who compute nothing. Its time is that of the slowest worker. The bound is the
time of the bytes on the busiest link: a hub's own, or a rack's.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import hpcomm
from bench.common.launch import ROOT
from bench.common.options import add_output, add_quick, write
from bench.ops.hosts_bench import carried, rate_of
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import Cluster, Unavailable

EACH = 2  # workers of a rack
MIB = 1 << 20
PORT = 7700
SECONDS = 60.0  # for a hub to begin or end
LIMIT = 600.0  # for a job
WAYS = ("ring", "sharded", "flat")
UNABLE = 77  # exit status if the machine has no hosts


def options_of(given: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m bench.phub.racks", description=__doc__.partition("\n")[0])
    p.add_argument("--racks", default="", help="numbers of racks; comma-separated; default: 1,2,4, or 1,2 if quick")
    p.add_argument("-s", "--size", type=int, default=16, help="MiB of the array")
    p.add_argument("-N", "--cycles", type=int, default=7, help="turns of each exchange")
    p.add_argument("--rate", type=rate_of, default="1gbit", help="of each host's link, as tc writes it")
    p.add_argument("--uplink", type=rate_of, default="250mbit", help="rate of the link that the hosts of a rack share")
    p.add_argument("--plant", action="store_true", help="spoil a value of each exchange, to see that #wrong counts it")
    add_quick(p, "1 MiB, one cycle, one and two racks")
    add_output(p, "")
    options = p.parse_args(given)
    options.racks = options.racks or ("1,2" if options.quick else "1,2,4")
    if options.quick:
        options.size, options.cycles = 1, 1
    try:
        options.racks = [int(word) for word in options.racks.split(",")]
    except ValueError:
        p.error(f"--racks: {options.racks!r} are no numbers")
    if min(options.size, options.cycles, *options.racks) < 1:
        p.error("--racks, -s and -N must be 1 or more")
    return options


# ---- a worker ------------------------------------------------------------------------------------------------------


def racks_of(workers: int) -> list[list[int]]:
    return [list(range(first, first + EACH)) for first in range(0, workers, EACH)]


def gradient(rank: int, n: int) -> Any:
    return ((np.arange(n) + rank) % 7 - 3).astype(np.float32)


def work(size: int, cycles: int, plant: bool) -> Row:
    """Returns the seconds of each way's steps, and how many elements are wrong at the end."""
    with hpcomm.connect_service(timeout=LIMIT) as ctx, ExitStack() as open_ones:
        n = size * MIB // 4
        racked: dict[str, Any] = {"racks": racks_of(ctx.size)}
        given = {"ring": {**racked, "top": "ring"}, "sharded": racked, "flat": {}}
        case: dict[str, Any] = {"servers": "hub", "rule": hpcomm.SGD(lr=0.5), "reduce": "sum"}
        values = {"x": np.zeros(n, np.float32)}
        ways = {
            way: open_ones.enter_context(hpcomm.parameter_hub(ctx, values, **case, **more))
            for way, more in given.items()
        }
        own, total = gradient(ctx.rank, n), sum(gradient(rank, n) for rank in range(ctx.size))
        found: dict[str, list[float]] = {way: [] for way in ways}
        for cycle in range(1 + cycles):  # the first one warms up
            order = [*WAYS[cycle % len(WAYS) :], *WAYS[: cycle % len(WAYS)]]
            for way in order:
                ctx.barrier()
                began = time.perf_counter()
                ways[way].push_pull("x", own)
                took = np.frombuffer(b"".join(ctx.allgather(np.float64(time.perf_counter() - began).tobytes())))
                if cycle > 0:
                    found[way].append(float(took.max()))
        wrong = {}
        for way, ex in ways.items():
            params = ex.params["x"].copy()
            if plant:
                params[n // 2] += 1
            wrong[way] = int((params != np.float32(-0.5 * (1 + cycles)) * total).sum())
        return {"cycles": found, "wrong": wrong}


# ---- the hosts -----------------------------------------------------------------------------------------------------


def bound(way: str, racks: int, nbytes: int, rate: float, uplink: float) -> float:
    """Returns the seconds that the bytes of a step take on the busiest link, one way.

    A hub's link takes the pushes of its workers; in racks also the folds of other racks for the chunks that it owns,
    and the parameters of the other chunks. A rack's link takes folds and parameters once in each direction, and
    without racks once for each worker.
    """
    others = (racks - 1) / racks
    copies = EACH if way == "flat" else 1
    at_hub = EACH + (0 if way == "flat" else 2 * others)
    return max(nbytes * at_hub / rate, nbytes * 2 * copies * others / uplink)


@contextmanager
def hubs(cluster: Cluster, hosts: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """Runs a hub on each of these hosts, and yields their addresses."""
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32), encoding="utf-8")
    config = folder / "hub.toml"
    config.write_text('cores = 1\ndrain_seconds = 0\n[namespaces.a]\ntoken_file = "token"\n', encoding="utf-8")
    where = [f"{cluster.address(host)}:{PORT}" for host in hosts]
    with ExitStack() as ends:
        for host, address in zip(hosts, where, strict=True):
            line = [sys.executable, "-m", "hpcomm", "hub", "serve", "--listen", address, "--config", str(config)]
            hub = cluster.popen(host, line, cwd=ROOT, stdout=subprocess.PIPE)
            ends.callback(hub.wait, SECONDS)
            ends.callback(hub.terminate)
            assert hub.stdout is not None
            if not any("listens at " in told for told in hub.stdout):
                raise SystemExit(f"the hub on {host} ended with status {hub.wait(SECONDS)}")
        yield where


def run(racks: int, options: argparse.Namespace) -> Row:
    """Runs a job in so many racks, and returns what its worker 0 found."""
    with (
        tempfile.TemporaryDirectory() as name,
        Cluster(racks * (EACH + 1), rate=options.rate, racks=racks, uplink=options.uplink) as cluster,
    ):
        folder, hosts = Path(name), [cluster.hosts[i :: EACH + 1] for i in range(EACH + 1)]
        workers = [host for rack in zip(*hosts[:EACH], strict=True) for host in rack]
        with hubs(cluster, hosts[EACH], folder) as where:
            token = ["--namespace", "a", "--token-file", str(folder / "token")]
            create = [sys.executable, "-m", "hpcomm", "hub", "create", *where, *token]
            handle = cluster.run(workers[0], create, cwd=ROOT).stdout.strip()
            env = {**os.environ, "HPCOMM_SERVICE": handle, "HPCOMM_SECRET_FILE": str(folder / "token")}
            line = [sys.executable, "-m", "bench.phub.racks", "worker", str(options.size), str(options.cycles)]
            jobs = [
                cluster.popen(
                    host,
                    [*line, str(int(options.plant))],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    env={**env, "RANK": str(rank), "WORLD_SIZE": str(len(workers))},
                )
                for rank, host in enumerate(workers)
            ]
            found = [job.communicate(timeout=LIMIT)[0] for job in jobs]
            if any(job.returncode for job in jobs):
                raise SystemExit(f"{racks} racks: workers ended with {[job.returncode for job in jobs]}")
            return json.loads(found[0])  # type: ignore[no-any-return]


def measure(options: argparse.Namespace) -> list[Row]:
    rows = []
    for i, racks in enumerate(options.racks):
        found = run(racks, options)
        for way in WAYS:
            least = bound(way, racks, options.size * MIB, carried(options.rate), carried(options.uplink))
            rows.append(
                {
                    "racks": racks,
                    "way": way,
                    "cycles": found["cycles"][way],
                    "bound": least,
                    "wrong": found["wrong"][way],
                }
            )
        if options.progress is not None:
            options.progress.write_text(f"{(i + 1) / len(options.racks):.4f}")
    return rows


def lines(rows: Sequence[Row]) -> Iterator[str]:
    yield f"{'racks':>6} {'way':<8} {'ms':>8} {'to':>8} {'bound':>8} {'of bound':>8} {'#wrong':>7}"
    for row in rows:
        ms = sorted(1e3 * second for second in row["cycles"])
        over = median(ms) / (1e3 * row["bound"])
        yield (
            f"{row['racks']:>6} {row['way']:<8} {median(ms):>8.1f} {ms[-1]:>8.1f} {1e3 * row['bound']:>8.1f} "
            f"{over:>8.2f} {row['wrong']:>7}"
        )


def main(given: Sequence[str] | None = None) -> int:
    options = options_of(given)
    try:
        rows = measure(options)
    except Unavailable as why:
        print(f"racks: no hosts here: {why}", file=sys.stderr)
        return UNABLE
    wrong = sum(row["wrong"] for row in rows)
    facts = {"benchmark": "phub.racks", "hpcomm": hpcomm.__version__, "size": options.size * MIB}
    document = {**facts, "rate": options.rate, "uplink": options.uplink, "rows": rows}
    text = json.dumps(document, indent=1)
    write(options, text)
    head = f"# {options.size} MiB; links of hosts {options.rate}, of racks {options.uplink}; {EACH} workers a rack"
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    print(text if options.json else "\n".join([head, *lines(rows), closing]))
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        its_size, its_cycles, its_plant = map(int, sys.argv[2:])
        print(json.dumps(work(its_size, its_cycles, bool(its_plant))))
    else:
        sys.exit(main())
