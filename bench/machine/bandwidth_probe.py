"""Compares Context.bandwidth with a link's true free rate.

It measures the error of the estimate's middle, the cost of a yes or no answer, and how much an exchange's steps slow
down meanwhile.

    python -m bench.machine.bandwidth_probe           # links of 50, 100 and 200 Mb/s, with iperf3 and without
    python -m bench.machine.bandwidth_probe --rates 100 --tries 10 --json

Hosts are namespaces (tests/cluster/hosts.py). The links' token buckets hold 16 KiB. iperf3 sends UDP to the receiver of
the probe, from the sender's host or from a third one. The true free rate is the link's rate less iperf3's, headers
included. Needs Debian's packages iproute2 and iperf3.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cluster.hosts import HEAD, Cluster, Unavailable

BURST = "16k"
DATAGRAM = 1400  # bytes of iperf3's payload
HEADERS = 42  # Ethernet, IP and UDP headers, which tbf counts besides the payload
NEAR = 0.2  # of the truth
FOLLOWS = 5.0  # seconds between two probes of a threshold that follows the network

# Rank 0 probes rank 1 several times; each probe prints a range or a verdict.
PROBES = """
import json, sys, hpcomm
tries, at_least = int(sys.argv[1]), float(sys.argv[2]) or None
with hpcomm.init(timeout=300) as ctx:
    if ctx.rank == 0:
        for _ in range(tries):
            b = ctx.bandwidth(1, at_least=at_least, timeout=60)
            print("FOUND", json.dumps([b.low, b.high, b.middle, b.sufficient, b.seconds, b.nbytes]), flush=True)
    ctx.barrier()
"""

# Steps of a 1 MiB exchange with a pause for computing, some while rank 0 probes now and then, some without probes.
STEPS = """
import json, sys, threading, time, numpy as np, hpcomm
every, seconds, at_least = float(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
with hpcomm.init(timeout=120) as ctx:
    params = {"w": np.zeros(1 << 18, np.float32)}
    grads = {"w": np.ones(1 << 18, np.float32)}
    with hpcomm.Exchange(ctx, params, rule=hpcomm.SGD(lr=1e-3)) as ex:
        ex.step(grads)
        for probing in (False, True, False, True):
            over, nbytes = threading.Event(), []
            def follow():
                while not over.wait(every):
                    nbytes.append(ctx.bandwidth(1, at_least=at_least, timeout=60).nbytes)
            thread = threading.Thread(target=follow)
            if probing and ctx.rank == 0:
                thread.start()
            steps, end = [], time.monotonic() + seconds
            while True:
                start = time.monotonic()
                time.sleep(0.3)
                ex.step(grads)
                steps.append(time.monotonic() - start)
                flags = ctx.allgather(b"1" if time.monotonic() > end else b"0")
                if b"1" in flags:
                    break
            over.set()
            if thread.is_alive():
                thread.join()
            if ctx.rank == 0:
                middle = sorted(steps)[len(steps) // 2]
                print("FOUND", json.dumps([probing, middle, len(nbytes), sum(nbytes)]), flush=True)
"""


@dataclass(frozen=True)
class Row:
    """The tries on one link. rate, load: Mb/s. near: tries whose middle is near the truth. share: part of the link's
    bytes."""

    rate: int
    load: int
    source: str
    truth: float  # bytes a second
    middles: list[float]
    near: int
    right: int  # right verdicts, asked at half and at twice the truth
    verdicts: int
    seconds: float
    verdict_seconds: float
    share_minute: float
    share_follows: float


@contextmanager
def competing(cluster: Cluster, load: int, source: str) -> Iterator[None]:
    """Lets iperf3 send UDP to h2, load Mb/s on the wire."""
    if load == 0:
        yield
        return
    bits = load * 1e6 * DATAGRAM / (DATAGRAM + HEADERS)
    server = cluster.popen("h2", ["iperf3", "-s"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    words = ["iperf3", "-c", "h2", "-u", "-b", f"{bits:.0f}", "-t", "3600", "-l", str(DATAGRAM)]
    client = cluster.popen(source, words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1)
    try:
        yield
    finally:
        client.kill()
        server.kill()


def found(cluster: Cluster, program: str, *words: float) -> list[list[float]]:
    command = [*cluster.mpirun(("h1", "h2"), ranks_per_host=1), sys.executable, "-c", program, *map(str, words)]
    done = cluster.run(HEAD, command, timeout=900)
    lines = [line for line in done.stdout.splitlines() if "FOUND" in line]
    if not lines:
        raise click.ClickException(f"no rank told anything: {done.stderr[-2000:]}")
    return [json.loads(line.partition("FOUND ")[2]) for line in lines]


def measure(cluster: Cluster, rate: int, load: int, source: str, tries: int) -> Row:
    truth, link = (rate - load) * 1e6 / 8, rate * 1e6 / 8
    with competing(cluster, load, source):
        ranges = found(cluster, PROBES, tries, 0)
        low, high = found(cluster, PROBES, tries, truth / 1.5), found(cluster, PROBES, tries, truth * 1.5)
    middles = [one[2] or 0.0 for one in ranges]
    most = max(one[5] for one in low + high)
    return Row(
        rate,
        load,
        source if load else "-",
        truth,
        middles,
        sum(abs(middle / truth - 1) <= NEAR for middle in middles),
        sum(one[3] is True for one in low) + sum(one[3] is False for one in high),
        2 * tries,
        median(one[4] for one in ranges),
        median(one[4] for one in low + high),
        most / (60 * link),
        most / ((FOLLOWS + min(one[4] for one in low + high)) * link),
    )


def slow_down(cluster: Cluster, rate: int, seconds: float) -> tuple[float, float]:
    """Returns how much longer a step takes while probes run back to back, and the share of the link's bytes that they
    use."""
    told = found(cluster, STEPS, FOLLOWS, seconds, rate * 1e6 / 16)
    free = [step for probing, step, _, _ in told if not probing]
    probed = [step for probing, step, _, _ in told if probing]
    nbytes = sum(one[3] for one in told if one[0])
    return sum(probed) / sum(free) - 1, nbytes / (2 * seconds * rate * 1e6 / 8)


@click.command()
@click.option("--rates", default="50,100,200", show_default=True, help="Of the links, in Mb/s.")
@click.option("--tries", default=10, show_default=True, type=click.IntRange(1), help="Of each question.")
@click.option("--seconds", default=40.0, show_default=True, help="Of each half of the steps.")
@click.option("--steps/--no-steps", default=True, help="Also measure the steps of an exchange.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(rates: str, tries: int, seconds: float, steps: bool, as_json: bool) -> None:
    """Probes links of known rates."""
    rows: list[Row] = []
    slower: dict[int, tuple[float, float]] = {}
    try:
        for rate in [int(word) for word in rates.split(",")]:
            with Cluster(3, rate=f"{rate}mbit", burst=BURST) as cluster:
                cases: Sequence[tuple[int, str]] = [(0, "-"), (rate // 2, "h1"), (rate // 2, "h3")]
                for load, source in track(cases, f"{rate} Mb/s", console=Console(stderr=True)):
                    rows.append(measure(cluster, rate, load, source, tries))
                if steps:
                    slower[rate] = slow_down(cluster, rate, seconds)
    except Unavailable as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({"rows": [asdict(row) for row in rows], "steps": slower}, indent=2))
    else:
        show(rows, slower)


def show(rows: Sequence[Row], slower: dict[int, tuple[float, float]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("Mb/s", "iperf3", "from", "truth", "found", "near", "verdicts", "s", "s", "a minute", "following"):
        table.add_column(column, justify="right")
    for row in rows:
        spread = f"{min(row.middles) * 8e-6:.1f} to {max(row.middles) * 8e-6:.1f}"
        near, right = f"{row.near} of {len(row.middles)}", f"{row.right} of {row.verdicts}"
        table.add_row(
            str(row.rate), str(row.load), row.source, f"{row.truth * 8e-6:.1f}", spread, near, right,
            f"{row.seconds:.1f}", f"{row.verdict_seconds:.1f}", f"{row.share_minute:.1%}", f"{row.share_follows:.1%}",
        )  # fmt: skip
    console = Console(width=140)
    console.print(table)
    for rate, (more, share) in slower.items():
        console.print(f"{rate} Mb/s: steps {more:+.1%} while probes follow, which take {share:.1%} of the link's bytes")


if __name__ == "__main__":
    main()
