"""Options that benchmarks with parsers of their own have in common. Needs neither MPI nor hpcomm."""

import argparse
import sys
from pathlib import Path

from bench.common.launch import ROOT


def add_output(parser: argparse.ArgumentParser, plot: str = "figures", progress: bool = True) -> None:
    """Where the figures go. plot: what is drawn; "" for nothing. progress: it says how far it is (launch.attend)."""
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("-J", "--output_file", type=Path, help="write JSON to this file too")
    if plot:
        parser.add_argument("--plot", type=Path, help=f"draw the {plot} into this file (needs matplotlib)")
    if progress:
        parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)  # a file that says which part is done


def held(text: str, *kinds: str) -> str:
    """The folder of --data, which must hold a data set of each kind (examples/paper_data.py). Rows may be one file."""
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
    """Who takes part, and how they reach each other."""
    parser.add_argument("--ranks", type=int, default=ranks, help="number of ranks when started without mpirun")
    parser.add_argument("--transport", default="", choices=("", "shm", "tcp", "verbs"))


def add_quick(parser: argparse.ArgumentParser, what: str = "small sizes and few samples") -> None:
    parser.add_argument("--quick", action="store_true", help=f"{what}: to see that all runs")


def add_links(parser: argparse.ArgumentParser) -> None:
    """What the links between hosts carry."""
    parser.add_argument(
        "--wire",
        type=lambda text: [1e6 * float(part) for part in text.split(",")],
        default=[],
        help="MB/s that a host's link carries, and a rack's: 119.6,29.9; default: iperf3 measures it",
    )


def write(options: argparse.Namespace, text: str) -> None:
    """The JSON, to the file that -J names."""
    if options.output_file is not None:
        options.output_file.write_text(text + "\n", encoding="utf-8")
