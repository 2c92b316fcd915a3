"""loopback: measures put between two ranks of one host by each transport, beside a copy by NumPy and a bare socket.

Shared memory needs one copy. With TCP the kernel makes two copies, and both ranks work. With RDMA, if the host has a
device, the NIC reads and writes the memory; `python -m bench.machine.loopback` measures the same NIC by bare verbs
(PHub, section 4.7).
"""

from collections.abc import Sequence
from contextlib import suppress

from ..errors import NotSupported
from .hardware import has_rdma
from .harness import TRANSPORTS, Bench, Benchmark, Contender
from .limits import Blocks, mate, window_of
from .put_bw import Stream, hpcomm_python, numpy_copy, options, sockets


def contenders(bench: Bench, size: int) -> Sequence[Contender]:
    near = mate(bench)
    if near is None:
        raise SystemExit(f"loopback: {alone(bench)}")
    blocks = Blocks(bench, max(size, bench.options.maxbytes))
    stream, source, target = Stream(bench, size, near), blocks.source, blocks.target
    found = [numpy_copy(stream, source, target), sockets(stream, source, target)]
    everywhere = all(bench.comm.allgather(has_rdma()))
    for transport in (bench.options.transport,) if bench.options.transport else TRANSPORTS:
        if transport == "verbs" and not everywhere:
            continue
        with suppress(NotSupported):  # the host has a device that hpcomm cannot use
            best = bench.apart and transport == "shm"  # a context of several hosts needs more than shared memory
            window = window_of(bench, "" if best else transport, blocks.room)
            found.append(hpcomm_python(stream, source, window, transport == "tcp", f"hpcomm put, {transport}"))
    return found


def alone(bench: Bench) -> str:
    return "" if mate(bench) is not None else "no other rank is on the host of rank 0"


BENCHMARK = Benchmark(
    name="loopback",
    about="put between two ranks of one host by each transport, beside a copy by NumPy and a bare socket.",
    dtype="uint64",
    contenders=contenders,
    defaults={"minbytes": 4 << 10, "maxbytes": 4 << 20, "stepfactor": 32, "iters": 2, "run_cycles": 7},
    options=options,
    refuses=alone,
    quick=("-R", "8M", "-n", "1", "-N", "3"),
)
