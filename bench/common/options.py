"""Options for benchmarks that make their own parsers. Needs no MPI."""

import argparse
import sys
from pathlib import Path

from bench.common.launch import ROOT
from hpcomm.bench.options import add_output, write

__all__ = ["add_links", "add_output", "add_pictures", "add_quick", "add_ranks", "held", "write"]


def held(text: str, *kinds: str) -> str:
    """Returns the folder of --data, which must hold a data set of each kind (examples/paper_data.py); rows may be one
    file."""
    sys.path.insert(0, str(ROOT / "examples"))
    import paper_data  # noqa: PLC0415 - examples is on the path by now

    try:
        for kind in kinds:
            if kind == paper_data.ROWS and Path(text).is_file():
                continue
            paper_data.find(Path(text), kind)
    except paper_data.BadData as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    return str(Path(text).resolve())


def add_pictures(parser: argparse.ArgumentParser) -> None:
    """Real pictures in place of digits."""
    digits = "folder that holds CIFAR-10; default: scikit-learn's digits"
    parser.add_argument("--data", type=lambda text: held(text, "pictures"), help=digits)


def add_ranks(parser: argparse.ArgumentParser, ranks: int) -> None:
    """Adds the options for the ranks and their transport."""
    parser.add_argument("--ranks", type=int, default=ranks, help="number of ranks when started without mpirun")
    parser.add_argument("--transport", default="", choices=("", "shm", "tcp", "verbs"))


def add_quick(parser: argparse.ArgumentParser, what: str = "small sizes and few samples") -> None:
    parser.add_argument("--quick", action="store_true", help=f"{what}: to see that all runs")


def add_links(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the rates of links between hosts and racks."""
    parser.add_argument(
        "--wire",
        type=lambda text: [1e6 * float(part) for part in text.split(",")],
        default=[],
        help="MB/s that a host's link carries, and a rack's: 119.6,29.9; default: iperf3 measures it",
    )
