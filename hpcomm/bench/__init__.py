"""The benchmarks of `hpcomm bench`: they measure the bounds of a machine, and which part of each bound hpcomm reaches.

Each benchmark is one file that fills a harness.Benchmark, and a row of TABLE. A contender is one implementation of a
benchmark's operation: hpcomm, a peer (another library) or a bound. Contenders run in turns in the same processes. The
repository's folder bench, which has the benchmarks of the papers, uses these files.
"""

import importlib
from typing import Any

# For each benchmark, a module of the same name, a line of help. `hpcomm bench` runs all in this order.
TABLE = {
    "limits": "bounds of memory, links between hosts, and PCIe, with hpcomm beside them",
    "loopback": "put between two ranks of one host, by each transport",
    "put_lat": "latency of put_signal -> wait_signal, one way",
    "put_bw": "bandwidth of put between ranks 0 and 1",
    "push_pull": "gradients of all ranks in, updated parameters out",
    "queue": "a step of NOTIFY-ACK: send to a neighbour, average with another",
    "sparse": "push_pull of updates of which a threshold keeps a part",
}


def find(name: str) -> Any:
    return importlib.import_module(f".{name}", __name__).BENCHMARK
