"""softroce: the benchmarks over RDMA on a machine without a NIC: softRoCE in a guest, and one table of all figures.

It boots one guest with one RDMA device and one with two (tests/softroce has their hardware), runs in each the
benchmarks for its devices, and copies their tables and JSON out. Everything is emulated, and the guest's cores do a
NIC's work. So figures are small, and only ratios within one run are meaningful.
"""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.common import judge, native
from bench.common.launch import ROOT, launcher, module_of
from bench.common.options import add_output, add_quick, write
from bench.ops import rdma
from bench.phub import chunk_plots
from hpcomm.bench import plots
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
import guest
import tree
from softroce.plan import Guest
from softroce.run import TORCH, check_machine, pack, site_packages

UNABLE = 77  # exit status if the machine cannot run it
ENDED = ("124", "137")  # exit statuses of a benchmark that `timeout` has ended
STARTING = 70  # seconds of a benchmark before and after its cycles
BOOTING = 90  # seconds
# Without the last two arguments the guest's clock is an emulated HPET, which only one core can read at a time.
HARDWARE = ["--memory", "4G", "--cpus", "2", "--append", "tsc=reliable", "--append", "clocksource=tsc"]
VERBS = ("--transport", "verbs")
FEW = ("-N", "3", "-n", "1")
# Two workers and a server: worker-by-interface then uses one of two NICs for each pair of ranks. Turns warm up
# themselves.
BOTH_WAYS = ("--affinity", "key,worker", "-m", "1", "--servers", "1", "-w", "0")
# MPI only starts the ranks; its own RDMA support is off.
OPEN_MPI = "OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm OMPI_MCA_osc=^ucx"


@dataclass(frozen=True)
class Run:
    """One benchmark in a guest with this many devices.

    Attributes:
        quick: arguments of a short run, which only shows that everything works.
        limit: seconds for its cycles.
        ranks: of mpirun.
    """

    key: str
    devices: int
    module: str
    arguments: tuple[str, ...]
    quick: tuple[str, ...]
    limit: int = 80
    ranks: int = 2

    @property
    def longest(self) -> int:
        return self.limit + STARTING


RUNS = (
    Run("latency", 1, "put_lat", (*VERBS, "-N", "15", "-n", "1", "-m", "200"), (*VERBS, *FEW, "-m", "8"), 120),
    Run(
        "bandwidth",
        1,
        "put_bw",
        (*VERBS, "-b", "32K", "-e", "4M", "-f", "2", "-R", "4M", "-S", "8M", "-N", "7", "-n", "1"),
        (*VERBS, "-b", "32K", "-e", "4M", "-f", "128", "-R", "4M", *FEW),
        300,  # starting perftest takes longer than its measurement
    ),
    Run(
        "exchange",
        1,
        "queue_bench",
        (*VERBS, "-b", "1M", "-e", "4M", "-f", "4", "-N", "9", "-n", "2"),
        (*VERBS, "-b", "1M", "-e", "1M", *FEW),
    ),
    Run(
        "push_pull",
        1,
        "push_pull",
        (*VERBS, "-s", "1M,4M", "-N", "15", "-n", "2", "-m", "1"),
        (*VERBS, "-s", "1M", "-m", "1", *FEW),
    ),
    Run(
        "limits",
        1,
        "loopback",
        (*VERBS, "-f", "4", "-R", "4M", "-N", "5"),
        (*VERBS, "-b", "64K", "-e", "64K", "-R", "1M", *FEW),
    ),
    Run(
        "limits, two NICs",
        2,
        "loopback",
        (*VERBS, "-b", "32K", "-f", "128", "-R", "4M", "-N", "5"),
        (*VERBS, "-b", "64K", "-e", "64K", "-R", "1M", *FEW),
    ),
    Run(
        "push_pull, two NICs",
        2,
        "push_pull",
        (*VERBS, "-s", "4M", "-N", "9", "-n", "1", "-m", "1"),
        (*VERBS, "-s", "1M", "-m", "1", *FEW),
    ),
    Run(
        "sweep",
        2,
        "chunk_sweep",
        (*VERBS, "-b", "4M", "-e", "4M", "--chunks", "4K,32K,256K", "--cores", "1,2,4", "-m", "1", *FEW),
        (*VERBS, "-b", "1M", "-e", "1M", "--chunks", "32K", "--cores", "2", "-m", "1", *FEW),
    ),
    Run(
        "affinity",
        2,
        "chunk_sweep",
        (*VERBS, "-b", "4M", "-e", "4M", "--chunks", "32K", "--cores", "2", *BOTH_WAYS, *FEW),
        (*VERBS, "-b", "256K", "-e", "256K", "--chunks", "32K", "--cores", "2", *BOTH_WAYS, "-N", "1", "-n", "1"),
        240,  # three ranks share the guest's two cores
        ranks=3,
    ),
)


def command(run: Run, quick: bool, folder: Path) -> str:
    """Returns a line of the guest's script; a benchmark's output, JSON and status go to files in the folder."""
    arguments = [*(run.quick if quick else run.arguments), "-L", str(run.limit), "-J", str(folder / f"{run.key}.json")]
    words = ["timeout", "-k", "5", str(run.longest), *launcher(run.ranks), module_of(run.module), *arguments]
    told, status = (shlex.quote(f"{folder}/{run.key}.{what}") for what in ("txt", "status"))
    return f"status=0; {shlex.join(words)} >{told} 2>&1 || status=$?; echo $status >{status}\n"


def boot(devices: int, runs: Sequence[Run], quick: bool, folder: Path) -> dict[str, Row]:
    """Boots one guest, runs all of its benchmarks, and returns their figures."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seconds = float(BOOTING + sum(run.longest for run in runs))
    machine = Guest(f"{devices} devices", HARDWARE, devices, seconds, [])
    packages, image = site_packages(), folder / "packages.ext4"
    pack(packages, image, TORCH)
    script = f"{machine.setup}modprobe ext4; modprobe loop; mount -o loop,ro '{image}' '{packages}'\n"
    script += f"export PATH='{tree.PATH}' {OPEN_MPI}\ncd '{ROOT}'\n"
    script += "".join(command(run, quick, folder) for run in runs)
    try:
        printed = guest.run(script, folder, seconds, *HARDWARE)
    finally:
        image.unlink(missing_ok=True)
    return {run.key: figures for run in runs if (figures := figures_of(run, folder, printed)) is not None}


def figures_of(run: Run, folder: Path, printed: str) -> Row | None:
    """Returns the figures that a benchmark has left, and prints which are missing and why. printed: the guest's
    output."""
    output, told, status = (folder / f"{run.key}.{what}" for what in ("json", "txt", "status"))
    ended = status.read_text().strip() if status.exists() else ""
    if ended != "0":
        lines = (told.read_text(errors="replace") if told.exists() else printed).strip().splitlines()[-5:]
        why = f"ended after {run.longest} s" if ended in ENDED else f"exit status {ended}"
        why = why if ended else "the guest did not come to its end" if told.exists() else "the guest did not get there"
        what = "figures of some sizes only" if output.exists() else "no figures"
        print(f"# {run.key}: {what}: {why}", *(f"#   {line}" for line in lines), sep="\n", file=sys.stderr)
    found: Row | None = json.loads(output.read_text(encoding="utf-8")) if output.exists() else None
    return found


def panels(document: Row) -> list[plots.Draw]:
    draws: list[plots.Draw] = []
    for key, run in document["runs"].items():
        if run["benchmark"] == "chunk_sweep":
            draws.append(partial(chunk_plots.sweep, document=run))
            continue
        largest = max(row["size"] for row in run["rows"])
        rows = [row for row in run["rows"] if row["size"] == largest]
        drawn = plots.bars if run["benchmark"] in ("put_lat", "push_pull", "queue_bench") else plots.rates
        draws.append(partial(drawn, rows=rows, heading=f"{key}: {run['benchmark']} of {plots.named_size(largest)}"))
    return draws


def tables(found: dict[str, Row], folder: Path) -> str:
    """The output of the benchmarks."""
    return "\n".join(path.read_text(errors="replace") for key in found for path in folder.glob(f"*/{key}.txt"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ops.softroce", description="The benchmarks over softRoCE.")
    parser.add_argument("--only", default="", help=f"of {', '.join(run.key for run in RUNS)}; separated by ;")
    add_quick(parser)
    parser.add_argument("--folder", type=Path, default=native.BUILD / "softroce", help="for tables, JSON and logs")
    add_output(parser, progress=False)
    options = parser.parse_args(arguments)
    wanted = [part.strip() for part in options.only.split(";") if part.strip()]
    unknown = set(wanted) - {run.key for run in RUNS}
    if unknown:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    chosen = [run for run in RUNS if not wanted or run.key in wanted]
    try:
        check_machine()
    except guest.Unavailable as why:
        print(f"softroce: {why}", file=sys.stderr)
        return UNABLE
    tree.build_tests("hpcomm")
    tree.give_verbs_to_package()
    native.build()  # on the host, whose compiler is not emulated
    native.build_verbs()
    folder = options.folder.resolve()
    found: dict[str, Row] = {}
    for devices in sorted({run.devices for run in chosen}):
        found |= boot(devices, [run for run in chosen if run.devices == devices], options.quick, folder / str(devices))
    promises = rdma.judge(found)
    document: dict[str, Any] = {"benchmark": "softroce", "runs": found, "promises": [vars(p) for p in promises]}
    document["rows"] = [row for run in found.values() for row in run["rows"]]
    text = json.dumps(document, indent=1)
    write(options, text)
    if options.plot is not None and found:
        plots.figure(options.plot, panels(document), "over softRoCE, in a guest without KVM", columns=2)
    print(text if options.json else f"{tables(found, folder)}\n{judge.table(promises)}")
    return 1 if len(found) < len(chosen) or any(row["wrong"] for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
