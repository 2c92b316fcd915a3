"""instructions: the number of instructions of an operation, counted by callgrind, beside another build of hpcomm.

On a shared machine times vary more than a change of the code changes them; instruction counts do not vary at all
between runs. One thread works for both ranks of an operation (instructions.c), so the counts contain no waits.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hpcomm
from bench.common.native import BUILD, compile_c, package
from bench.common.options import add_output, write
from hpcomm.bench.rows import Row

LIMIT = 300.0  # seconds for one count
FEW, MANY = 100, 1100  # operations of two runs: their difference counts, as the first ones differ


def compiled(of: Path, name: str) -> Path:
    """Compiles the program with a package's headers and library."""
    compile_c(BUILD / name, ["machine/instructions.c"], libraries=["-lpthread"], of=of)
    return BUILD / name


def operations(program: Path) -> list[str]:
    return subprocess.run([program], capture_output=True, text=True, check=False).stdout.splitlines()


def count(program: Path, operation: str) -> float:
    """Returns the instructions of one operation, of both ranks together."""
    few, many = (_run(program, operation, n) for n in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def _run(program: Path, operation: str, n: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=counted"]
    command += [str(program), operation, str(n)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    found = re.search(r"Collected : (\d+)", ended.stderr)
    if ended.returncode != 0 or found is None:
        raise SystemExit(f"instructions: {operation} failed: {ended.stderr.strip()}")
    return int(found[1])


def table(document: Row) -> str:
    lines = [
        f"# instructions of an operation, both ranks together, inline on shm; hpcomm {document['hpcomm']}",
        f"{'operation':22} {'here':>12}" + (f" {'against':>12} {'ratio':>7}" if document["against"] else ""),
    ]
    for row in document["rows"]:
        beside = f" {row['against']:12.1f} {row['ratio']:7.4f}" if document["against"] else ""
        lines.append(f"{row['name']:22} {row['instructions']:12.1f}{beside}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.machine.instructions", description="Instructions of an operation, by callgrind."
    )
    parser.add_argument(
        "--against", type=Path, help="the folder of another built package (.../hpcomm, with include and lib), beside it"
    )
    parser.add_argument("--only", default="", help="operations whose names contain this; default: all")
    add_output(parser, plot="")
    options = parser.parse_args(arguments)
    if shutil.which("valgrind") is None:
        raise SystemExit("instructions: valgrind is missing: apt-get install -y valgrind")
    here = compiled(package(), "instructions")
    other = None if options.against is None else compiled(options.against.resolve(), "instructions-against")
    rows: list[Row] = []
    names = [name for name in operations(here) if options.only in name]
    if not names:
        parser.error(f"--only is {options.only!r}: no operation's name contains it")
    for i, name in enumerate(names):
        row: Row = {"name": name, "wrong": 0, "instructions": count(here, name)}
        if other is not None:
            row["against"] = count(other, name)
            row["ratio"] = row["instructions"] / row["against"]
        rows.append(row)
        if options.progress is not None:
            options.progress.write_text(f"{(i + 1) / len(names):.4f}")
    document: Row = {
        "benchmark": "instructions",
        "hpcomm": hpcomm.__version__,
        "against": None if other is None else str(options.against),
        "rows": rows,
    }
    text = json.dumps(document, indent=1)
    write(options, text)
    print(text if options.json else table(document), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
