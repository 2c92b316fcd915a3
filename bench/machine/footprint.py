"""footprint: the memory of one rank for its peers, besides its windows, over TCP and over shared memory.

The ranks run the C program footprint.c, because an interpreter with its modules would use many times as much. The
figure is that of the rank with the most memory.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hpcomm
from bench.common.launch import cores
from bench.common.native import BUILD, compile_c
from bench.common.options import add_output, write
from hpcomm.bench.rows import Row

LIMIT = 120.0  # seconds for the ranks of one transport
COLUMNS = ("private_dirty", "pss", "kernel")


def measure(program: Path, transport: str, ranks: int) -> list[Row]:
    command = [str(program), "--json", "-t", str(ranks), "--transport", transport]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"footprint of {ranks} ranks by {transport} failed: {ended.stderr.strip()}")
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    return [{"transport": transport, "wrong": 0, **row} for row in rows]


def table(document: Row) -> str:
    lines = [
        f"# footprint: {document['ranks']} ranks on {document['cores']} cores, hpcomm {document['hpcomm']}",
        "# KiB of a rank, the most of all ranks; the kernel's part is its memory for objects and sockets over ranks",
        f"{'transport':10} {'when':28} {'private dirty':>14} {'PSS':>10} {'kernel':>10}",
    ]
    for row in document["rows"]:
        figures = [row[column] >> 10 for column in COLUMNS]
        lines.append(f"{row['transport']:10} {row['name']:28} {figures[0]:14} {figures[1]:10} {figures[2]:10}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.machine.footprint", description="Memory of a rank for its peers."
    )
    parser.add_argument("--ranks", type=int, default=64, help="an even number, 64 at the most")
    parser.add_argument("--transports", default="tcp,shm", help="one after another, comma-separated")
    add_output(parser, plot="")
    options = parser.parse_args(arguments)
    program = BUILD / "footprint"
    compile_c(program, ["machine/footprint.c"])
    rows: list[Row] = []
    transports = options.transports.split(",")
    for i, transport in enumerate(transports):
        rows += measure(program, transport.strip(), options.ranks)
        if options.progress is not None:
            options.progress.write_text(f"{(i + 1) / len(transports):.4f}")
    document: dict[str, Any] = {
        "benchmark": "footprint",
        "ranks": options.ranks,
        "cores": cores(),
        "hpcomm": hpcomm.__version__,
        "rows": rows,
    }
    text = json.dumps(document, indent=1)
    write(options, text)
    print(text if options.json else table(document), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
