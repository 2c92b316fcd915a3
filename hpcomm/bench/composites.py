"""Composites: replacements of push_pull that a user would write, from a collective of MPI or Gloo and an optimizer.

With mpi4py there are three ways: allreduce, reduce and reduce_scatter. Each way has several forms: the update, Nesterov
momentum in NumPy, runs over whole arrays, or in blocks that fit the cache. All forms of a way change the same
parameters. To be fair, calls get their arguments in mpi4py's fastest form, arrays start on a cache line, and reductions
are in place if that is faster. Gloo is used with torch's optimizer.
"""

import importlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import accumulate, product
from typing import Any

import numpy as np

from .arrays import Floats, aligned, zeros
from .harness import Bench, Contender
from .training import MOMENTUM, RATE, Reference, Step, Task
from .wire import afar, path_to

BLOCK = 1 << 15  # elements of a block: four arrays of this size stay in a core's cache
SCATTER, SCATTER_BLOCK = (f"{call} + update + Allgather" for call in ("Reduce_scatter", "Reduce_scatter_block"))
Form = Callable[[str, int, Any], tuple[list[Floats], list[Step]]]  # (name, block, comm) -> parameters, steps by key


def nothing() -> None:
    pass


def mpi() -> Any:
    """Returns the module mpi4py.MPI, which a job started by MPI has loaded."""
    return sys.modules["mpi4py.MPI"]


def message(array: Floats, *count: int) -> tuple[object, ...]:
    """Returns an array in the form that mpi4py handles fastest. count is left out for collectives that divide the array
    among the ranks."""
    MPI = mpi()
    return (MPI.buffer.frombuffer(array) if array.size else MPI.BOTTOM, *count, MPI.FLOAT)


def update(params: Floats, velocity: Floats, gradient: Floats, scratch: Floats, rate: float, block: int) -> Step:
    """Returns a function that makes a step of Nesterov momentum in place, block elements at a time.

    gradient is the sum of all ranks' gradients; rate must be the learning rate over the number of ranks.
    """
    parts = [
        (
            params[at : at + block],
            velocity[at : at + block],
            gradient[at : at + block],
            scratch[: params.size - at][:block],
        )
        for at in range(0, params.size, max(1, block))
    ]
    multiply, add, subtract = np.multiply, np.add, np.subtract
    mu, lr = np.array(MOMENTUM, np.float32), np.array(rate, np.float32)

    def apply() -> None:
        for p, v, g, t in parts:
            multiply(v, mu, v)
            add(v, g, v)
            multiply(v, mu, t)
            add(t, g, t)
            multiply(t, lr, t)
            subtract(p, t, p)

    return apply


class Composites:
    """The three ways with MPI. They share the arrays of the gradients and a scratch array."""

    def __init__(self, job: Task, comms: Mapping[str, Any]) -> None:
        self.job, self.comms = job, comms
        self.size, self.rank = job.bench.size, job.bench.rank
        self.rate = RATE / self.size
        self.gradients = [zeros(key.count) for key in job.keys]
        self.scratch = aligned(max(key.count for key in job.keys))

    def contenders(self) -> Iterator[Contender]:
        bench, largest = self.job.bench, max(key.count for key in self.job.keys)
        even = all(key.count % bench.size == 0 for key in self.job.keys)
        ways: tuple[tuple[Callable[[], Form], tuple[str, ...]], ...] = (
            (self.allreduce, ("Allreduce + update",)),
            (self.reduce, ("Reduce + update + Bcast",)),
            (self.reduce_scatter, (SCATTER, SCATTER_BLOCK) if even else (SCATTER,)),
        )
        for way, names in ways:
            forms = [(name, name, largest) for name in names]
            forms += [(f"{name}, blocks", name, BLOCK) for name in names if largest > BLOCK]
            made: tuple[Form, Reference] | None = None
            for (form_name, name, block), (suffix, comm) in product(forms, self.comms.items()):
                title = form_name + suffix
                if not bench.wanted(title):
                    continue
                if made is None or bench.options.plant:  # a fault planted in one form must not appear in the next
                    made = way(), Reference(self.job)
                form, reference = made
                yield self.contender(title, reference, *form(name, block, comm))

    def contender(self, name: str, reference: Reference, params: list[Floats], steps: list[Step]) -> Contender:
        def step() -> None:
            for exchange in steps:
                exchange()

        only = steps[0] if len(steps) == 1 else step
        measure = self.job.turn(only, params, lambda: self.gradients, reference=reference)
        return Contender(name, "peer", measure)

    def allreduce(self) -> Form:
        """Returns the way with Allreduce: all ranks get the sum, and each updates all parameters."""
        params = self.job.params()
        velocities = [zeros(key.count) for key in self.job.keys]

        def steps_of(name: str, block: int, comm: Any) -> tuple[list[Floats], list[Step]]:
            return params, [
                self._allreduce(comm, g, update(p, v, g, self.scratch, self.rate, block))
                for g, p, v in zip(self.gradients, params, velocities, strict=True)
            ]

        return steps_of

    def _allreduce(self, comm: Any, gradient: Floats, apply: Step) -> Step:
        in_place, receive = mpi().IN_PLACE, message(gradient, gradient.size)

        def step() -> None:
            comm.Allreduce(in_place, receive)
            apply()

        return step

    def reduce(self) -> Form:
        """Returns the way with Reduce: rank 0 gets the sum, updates, and broadcasts the parameters."""
        params = self.job.params()
        root = self.rank == 0
        velocities = [zeros(key.count if root else 0) for key in self.job.keys]

        def steps_of(name: str, block: int, comm: Any) -> tuple[list[Floats], list[Step]]:
            return params, [
                self._reduce(comm, g, p, update(p, v, g, self.scratch, self.rate, block) if root else nothing)
                for g, p, v in zip(self.gradients, params, velocities, strict=True)
            ]

        return steps_of

    def _reduce(self, comm: Any, gradient: Floats, params: Floats, apply: Step) -> Step:
        mine = message(gradient, gradient.size)
        send, receive = (mpi().IN_PLACE, mine) if self.rank == 0 else (mine, None)
        whole = message(params, params.size)

        def step() -> None:
            comm.Reduce(send, receive)
            apply()
            comm.Bcast(whole)

        return step

    def reduce_scatter(self) -> Form:
        """Returns the way with Reduce_scatter: each rank gets a part of the sum, updates it, and gathers the others."""
        params = self.job.params()
        shards = [Shard(array.size, self.size, self.rank) for array in params]
        sums, velocities = ([zeros(shard.count) for shard in shards] for _ in range(2))

        def steps_of(name: str, block: int, comm: Any) -> tuple[list[Floats], list[Step]]:
            found = []
            for k, shard in enumerate(shards):
                own = params[k][shard.start : shard.start + shard.count]
                apply = update(own, velocities[k], sums[k], self.scratch, self.rate, block)
                even = name == SCATTER_BLOCK
                found.append(self._reduce_scatter(comm, shard, self.gradients[k], sums[k], params[k], apply, even))
            return params, found

        return steps_of

    def _reduce_scatter(
        self,
        comm: Any,
        shard: "Shard",
        own: Floats,
        summed: Floats,
        params: Floats,
        apply: Step,
        even: bool,
    ) -> Step:
        counts = shard.counts
        send, receive = message(own), message(summed, summed.size)
        if len(set(counts)) == 1:
            gather, whole = comm.Allgather, message(params)
        else:
            gather = comm.Allgatherv
            whole = (mpi().buffer.frombuffer(params), (counts, shard.starts), mpi().FLOAT)

        in_place = mpi().IN_PLACE

        def step() -> None:
            comm.Reduce_scatter(send, receive, counts)
            apply()
            gather(in_place, whole)

        def step_of_equals() -> None:
            comm.Reduce_scatter_block(send, receive)
            apply()
            gather(in_place, whole)

        return step_of_equals if even else step


class Shard:
    def __init__(self, count: int, size: int, rank: int) -> None:
        self.counts = [count // size + (r < count % size) for r in range(size)]
        self.starts = [0, *accumulate(self.counts[:-1])]
        self.start, self.count = self.starts[rank], self.counts[rank]


def gloo_group(bench: Bench) -> tuple[Any, Any, Step]:
    """Makes Gloo's process group of all ranks. Returns torch, torch.distributed, and a function that ends the group."""
    torch, dist = (importlib.import_module(name) for name in ("torch", "torch.distributed"))
    torch.set_num_threads(max(1, bench.cores // bench.hosts.count(bench.hosts[bench.rank])))
    interface, folder = "lo", None
    if bench.apart:
        host, interface = path_to(bench, afar(bench, bench.rank))
        host = bench.comm.bcast(host, afar(bench, 0))  # the address at which another host reaches rank 0
        with socket.create_server((host, 0)) if bench.rank == 0 else nullcontext() as free:
            store = f"tcp://{host}:{bench.comm.bcast(free.getsockname()[1] if free else None)}"
    else:
        folder = bench.comm.bcast(tempfile.mkdtemp() if bench.rank == 0 else None)
        store = f"file://{folder}/gloo"
    if interface:
        os.putenv("GLOO_SOCKET_IFNAME", interface)  # Gloo's C++ code reads it
    dist.init_process_group("gloo", init_method=store, rank=bench.rank, world_size=bench.size)

    def close() -> None:
        dist.destroy_process_group()
        bench.meet()
        if bench.rank == 0 and folder is not None:
            shutil.rmtree(folder)

    return torch, dist, close


def gloo(job: Task) -> Contender:
    """Returns a contender that calls all_reduce of Gloo and torch's fused SGD for one key after another."""
    bench = job.bench
    torch, dist, close = gloo_group(bench)
    arrays = job.params()
    params = [torch.from_numpy(array).requires_grad_() for array in arrays]
    summed = [aligned(key.count) for key in job.keys]
    gradients = [torch.from_numpy(array) for array in summed]
    rules = []
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient
        rules.append(torch.optim.SGD([param], lr=RATE / bench.size, momentum=MOMENTUM, nesterov=True, fused=True))

    def step() -> None:
        for gradient, rule in zip(gradients, rules, strict=True):
            dist.all_reduce(gradient)
            rule.step()

    return Contender("Gloo + torch SGD", "peer", job.turn(step, arrays, lambda: summed), close)


# ---- the sum alone: between hosts its time is nearly all --------------------------------------------------------


class Sums(Reference):
    """The expected values if a step only sums all gradients."""

    def step(self) -> None:
        self._params[: self.job.classes] = self.job.total[: self.job.classes]


def alone(job: Task, name: str, summed: Sequence[Floats], step: Step, close: Step = nothing) -> Contender:
    return Contender(name, "peer", job.turn(step, summed, lambda: summed, reference=Sums(job)), close)


def allreduce_alone(job: Task, name: str, comm: Any) -> Contender:
    summed = [zeros(key.count) for key in job.keys]
    parts, allreduce, in_place = [message(array, array.size) for array in summed], comm.Allreduce, mpi().IN_PLACE

    def step() -> None:
        for part in parts:
            allreduce(in_place, part)

    return alone(job, name, summed, step)


def gloo_alone(job: Task) -> Contender:
    torch, dist, close = gloo_group(job.bench)
    summed = [zeros(key.count) for key in job.keys]
    tensors = [torch.from_numpy(array) for array in summed]

    def step() -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)

    return alone(job, "Gloo all_reduce alone", summed, step, close)


def composites(job: Task, comms: Mapping[str, Any]) -> Sequence[Contender]:
    return list(Composites(job, comms).contenders())
