"""Options that all benchmarks have: where to write the results."""

import argparse
from pathlib import Path


def add_output(parser: argparse.ArgumentParser, plot: str = "figures", progress: bool = True) -> None:
    """Adds the options of the output. plot: what --plot draws, for its help; "": no option --plot. progress: add the
    option --progress, for benchmarks that report their progress (bench.common.launch.attend)."""
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("-J", "--output_file", type=Path, help="write JSON to this file too")
    if plot:
        parser.add_argument("--plot", type=Path, help=f"draw the {plot} into this file (needs matplotlib)")
    if progress:
        parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)  # a file for the part that is done, 0 to 1


def write(options: argparse.Namespace, text: str) -> None:
    if options.output_file is not None:
        options.output_file.write_text(text + "\n", encoding="utf-8")
