"""Whether .ci/run --full is owed: python3 tests/softroce/owed.py

.ci/full names the commit that the full run last passed on. Prints a line if what RDMA needs has changed since.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FULL = ".ci/full"
SOURCES = [
    *("csrc/transport/verbs/*", "csrc/transport/reactor.*", "csrc/transport/device.*", "csrc/context/lane.*"),
    *("csrc/engine/*", "csrc/discipline/*"),
]


def owed(root: Path = ROOT) -> str:
    """The line to print; empty if the full run has seen these sources as they are."""

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)

    try:
        commit = (root / FULL).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        commit = ""
    if not commit:
        return f"softroce: full run owed: {FULL} names no commit"
    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        return f"softroce: full run owed since {commit}, which is not here"
    if git("diff", "--quiet", commit, "--", *SOURCES).returncode:
        return f"softroce: full run owed since {commit}"
    return ""


if __name__ == "__main__":
    if line := owed():
        print(line)
    sys.exit(0)
