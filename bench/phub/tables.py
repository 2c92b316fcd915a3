"""tables: PHub's computed results: table 2, section 4.7 and table 5, beside the paper's printed numbers.

table 2       the least bandwidth at a server that hides communicating: by the paper's formula (figure 4) for each
              network of table 3, and by hpcomm's own count of the bytes of a plan (hpcomm.model.load_of)
section 4.7   the workers that one server can serve: from the paper's use of its limits, and from --link and --memory,
              this machine's rates as bench.machine.limits prints them
table 5       throughput for 1000 dollars. The paper prints neither throughputs nor the prices of its V100 and its cheap
              CPU, so four cells give these four numbers, and the formula of section 4.9 the other eight

Nothing is measured. #wrong counts the numbers in which hpcomm's count differs from the formula.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import hpcomm
from bench.common.options import add_output, write
from bench.phub import paper
from bench.phub.paper import Deployment, Network
from hpcomm.bench.rows import Row
from hpcomm.topology import Request

CHUNK = 32 << 10  # bytes, PHub's own (section 3.2.3)
SAME = 5e-3  # relative difference that counts as equal: chunks are not spread more evenly
GIGABIT, GIGABYTE = 1e9 / 8, 1e9
PER_WORKER = 3  # memory streams per worker, without a cache: gradient written and read, parameters read
PER_SERVER = 4  # memory streams besides: parameters and momentum, each read and written


# ---- table 2 -------------------------------------------------------------------------------------------------------


def share(placement: str, workers: int = paper.WORKERS) -> float:
    """Returns how many models the busiest link carries in an exchange, in both directions together, as table 2
    counts. NCS has as many servers as workers."""
    return 2 * max(paper.each_way(placement, workers, workers))


def counted(network: Network, placement: str, workers: int = paper.WORKERS) -> float:
    """Returns the same from the rows of hpcomm's plan, with one rank on each host, in bytes."""
    serving = {"NCC": 1, "NCS": workers}.get(placement, 0)
    servers = range(workers, workers + serving) if serving else None
    hub = hpcomm.ParameterServer(placement, servers)
    plan = hub.compile(Request({"model": int(network.nbytes) // 4}, workers + serving, chunk_bytes=CHUNK))
    out, into = hpcomm.model.load_of(plan).by_host()
    return float(np.max(out.sum(0) + into.sum(0)))


def implied(network: Network) -> tuple[float, float]:
    """Returns the least and the largest M/T, in Gb/s, for which the formula gives all numbers of table 2 as rounded.
    If no M/T does, the least is above the largest."""
    printed = [(number, share(placement)) for number, placement in zip(network.least, paper.PLACEMENTS, strict=True)]
    return max((number - 0.5) / part for number, part in printed), min(
        (number + 0.5) / part for number, part in printed
    )


def table2() -> Iterator[Row]:
    for network in paper.NETWORKS:
        rate = network.nbytes / network.seconds / GIGABIT  # M/T
        for i, placement in enumerate(paper.PLACEMENTS):
            least, found = rate * share(placement), counted(network, placement) / network.seconds / GIGABIT
            row = {
                "item": "table 2",
                "network": network.name,
                "placement": placement,
                "formula": least,
                "hpcomm": found,
            }
            row["wrong"] = int(abs(found / least - 1) > SAME)
            if network.least:
                low, high = implied(network)
                row |= {"printed": network.least[i], "agrees": abs(least - network.least[i]) <= 0.5}
                row |= {"implied": (low, high), "milliseconds": 8e-3 * network.megabytes / ((low + high) / 2) * 1e3}
            yield row


def lines2(rows: Sequence[Row]) -> Iterator[str]:
    yield f"# table 2: least bandwidth (Gb/s, both directions) that hides communicating, {paper.WORKERS} workers"
    yield f"{'network':14}" + "".join(f"{name:>24}" for name in paper.PLACEMENTS)
    yield f"{'':14}" + f"{'formula  hpcomm   paper':>24}" * len(paper.PLACEMENTS)
    for network in paper.NETWORKS:
        own = [row for row in rows if row["network"] == network.name]
        yield f"{network.name:14}" + "".join(
            f"{row['formula']:8.1f}{row['hpcomm']:8.1f}{row.get('printed', '-'):>8}" for row in own
        )
    for network in (network for network in paper.NETWORKS if network.least):
        row = next(row for row in rows if row["network"] == network.name)
        low, high = row["implied"]
        all_of = f"M/T of {low:.2f} to {high:.2f} Gb/s gives all four" if low <= high else "no M/T gives all four"
        given = network.nbytes / network.seconds / GIGABIT
        yield (
            f"# {network.name}: {all_of}: T = {row['milliseconds']:.1f} ms; table 3 has {given:.2f} Gb/s, "
            f"T = {network.milliseconds:g} ms"
        )


# ---- section 4.7 ---------------------------------------------------------------------------------------------------


def served(network: Network, link: float, memory: float) -> tuple[float, float]:
    """Returns how many computing workers one server can serve, by its link and by its memory. link: bytes a second
    in each direction. memory: bytes a second, read and written."""
    by_memory = (network.seconds * memory / network.nbytes - PER_SERVER) / PER_WORKER
    return network.seconds * link / network.nbytes, max(0.0, by_memory)


def section47(link: float | None, memory: float | None) -> Iterator[Row]:
    for use in paper.USES:
        workers = paper.USED_BY * use.limit / use.used
        yield {"item": "section 4.7", "limit": use.name, "used": use.used, "of": use.limit, "workers": workers}
    if link is None and memory is None:
        return
    for network in paper.NETWORKS:
        found = served(network, link or math.inf, memory or math.inf)
        row: Row = {"item": "section 4.7, here", "network": network.name}
        yield row | {"by_link": found[0] if link else None, "by_memory": found[1] if memory else None}


def lines47(rows: Sequence[Row]) -> Iterator[str]:
    yield f"\n# section 4.7: workers that one server can serve; ResNet 50, from the use by {paper.USED_BY} workers"
    yield f"{'limit of PBox':32}{'used GB/s':>10}{'limit GB/s':>12}{'workers':>9}"
    limits = [row for row in rows if "limit" in row]
    yield from (f"{row['limit']:32}{row['used']:10g}{row['of']:12g}{row['workers']:9.0f}" for row in limits)
    yield f"# the least is {min(row['workers'] for row in limits):.0f}; the paper says up to {paper.SERVED}"
    here = [row for row in rows if "network" in row]
    if here:
        yield f"{'network, this machine':32}{'by its link':>12}{'by its memory':>15}"
    for row in here:
        cells = ["-" if row[name] is None else f"{row[name]:.1f}" for name in ("by_link", "by_memory")]
        yield f"{row['network']:32}{cells[0]:>12}{cells[1]:>15}"


# ---- table 5 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A reading of section 4.9, which defines H without using it, and counts a worker's NIC twice.

    Attributes:
        nics: how often a worker pays for its own NIC: alone, and within A.
        pbox: dollars of a PBox without its network.
    """

    name: str
    nics: int
    pbox: float


READINGS = (
    Reading("as written: W + N + 4G + A, P = W + 20N + 20A", 2, paper.WORKER),
    Reading("N once, P = H + 20N + 20A", 1, paper.PBOX),
)


def network_cost(nic: float, port: float, cable: float, oversubscription: int) -> float:
    """A: the network of one machine."""
    return nic + port + cable + (4 * port + 2 * cable) / oversubscription


def cost(deployment: Deployment, reading: Reading) -> float:
    """Returns the dollars of a worker with its GPUs, its network and its part of a PBox."""
    computing = paper.WORKER + paper.GPUS * paper.GPU
    port = paper.SWITCH / paper.PORTS
    if deployment == paper.BASELINE:
        network = network_cost(paper.NIC_100, port, paper.CABLE_100, deployment.oversubscription)
        return computing + (reading.nics - 1) * paper.NIC_100 + network
    network = network_cost(paper.NIC_25, port / 4, paper.CABLE_25, deployment.oversubscription)
    pbox = reading.pbox + paper.PBOX_PORTS * (paper.NIC_PBOX + network)
    return computing + (reading.nics - 1) * paper.NIC_25 + network + pbox / deployment.workers


def cells(reading: Reading) -> Iterator[Row]:
    """Computes table 5 by one reading. given: the cells that replace the numbers that the paper does not print."""
    base, (first, *_) = paper.BASELINE, paper.DEPLOYMENTS
    dollars = cost(base, reading)
    throughput = {True: base.printed[0] * dollars, False: first.printed[0] * cost(first, reading)}
    more = [dollars * (base.printed[0] / printed - 1) for printed in base.printed]  # than with "Future GPUs"
    for deployment in (base, *paper.DEPLOYMENTS):
        for i, column in enumerate(paper.COLUMNS):
            found = throughput[deployment == base] / (cost(deployment, reading) + more[i])
            yield {
                "item": "table 5",
                "reading": reading.name,
                "deployment": deployment.name,
                "column": column,
                "dollars": cost(deployment, reading) + more[i],
                "value": found,
                "printed": deployment.printed[i],
                "given": deployment == base or (deployment == first and i == 0),
                "agrees": abs(found - deployment.printed[i]) <= 0.005,
            }


def gains() -> Iterator[Row]:
    """Returns how far the printed cells of 2:1 exceed the baseline, beside the percentages of the text."""
    for column, base, better, said in zip(
        paper.COLUMNS, paper.BASELINE.printed, paper.DEPLOYMENTS[1].printed, paper.GAINS, strict=True
    ):
        gain = 100 * (better / base - 1)
        yield {"item": "table 5, gain", "column": column, "value": gain, "printed": said, "agrees": round(gain) == said}


def lines5(rows: Sequence[Row]) -> Iterator[str]:
    for reading in READINGS:
        yield f"\n# table 5: throughput for 1000 dollars; {reading.name}"
        yield f"{'deployment':20}{'a worker ($)':>13}" + "".join(
            f"{f'{name}: ours':>20}{'paper':>8}" for name in paper.COLUMNS
        )
        own = [row for row in rows if row.get("reading") == reading.name]
        for deployment in (paper.BASELINE, *paper.DEPLOYMENTS):
            three = [row for row in own if row["deployment"] == deployment.name]
            yield f"{deployment.name:20}{three[0]['dollars']:13.0f}" + "".join(
                f"{row['value']:19.2f}{'=' if row['given'] else ' '}{row['printed']:8.2f}" for row in three
            )
        off = max(abs(row["value"] / row["printed"] - 1) for row in own)
        yield f"# =: taken from the paper's cell. The others differ by up to {100 * off:.1f} %"
    for row in (row for row in rows if row["item"] == "table 5, gain"):
        yield f"# 2:1 above the baseline, {row['column']}: {row['value']:.1f} %; the text says {row['printed']} %"


# ---- the program ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m bench.phub.tables", description="PHub's arithmetic.")
    p.add_argument(
        "--link", type=float, help="GB/s of a server's link in each direction: limits' row of the wire, algbw"
    )
    p.add_argument("--memory", type=float, help="GB/s read and written: limits' row of add, all ranks, busbw")
    add_output(p, plot="", progress=False)
    options = p.parse_args(arguments)
    rates = [rate and rate * GIGABYTE for rate in (options.link, options.memory)]
    if any(rate is not None and not 0 < rate < math.inf for rate in rates):
        p.error(f"--link {options.link}, --memory {options.memory}: must be above 0, in GB/s")
    parts = [list(table2()), list(section47(*rates)), [row for way in READINGS for row in cells(way)] + list(gains())]
    rows = [{"wrong": 0, **row} for part in parts for row in part]
    wrong = sum(row["wrong"] for row in rows)
    text = json.dumps({"benchmark": "phub.tables", "hpcomm": hpcomm.__version__, "rows": rows}, indent=1)
    write(options, text)
    printed = [line for part, lines in zip(parts, (lines2, lines47, lines5), strict=True) for line in lines(part)]
    closing = f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    print(text if options.json else "\n".join([*printed, closing]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
