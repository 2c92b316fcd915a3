"""The ways to train that torch.step and torch.hosts compare: plain torch, DDP over Gloo, and hpcomm.torch.

Each way has its own model with the same first weights, and one of torch's optimizers. All take the same batches.
"""

import os
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hpcomm
from bench.torch.models import Batch, Task

MOMENTUM = 0.9
EPSILON = 1e-4  # AdamW's: with torch's 1e-8 a rounding error in a zero gradient could move a weight by a whole step
ALONE, DDP = "alone", "DDP over Gloo"
STEP, BACKWARD, WAITS = "hpcomm, step", "hpcomm, backward", "hpcomm, waits"  # the last is the default, without overlap
NAMES = (ALONE, DDP, STEP, BACKWARD, WAITS)
ROLES = {ALONE: "bound", DDP: "peer", STEP: "hpcomm", BACKWARD: "hpcomm", WAITS: "hpcomm"}
Loss = Callable[[Tensor, Tensor], Tensor]
Rule = Callable[[Iterator[nn.Parameter], float], torch.optim.Optimizer]  # of parameters and a learning rate


def plain(parameters: Iterator[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM)


def fused(parameters: Iterator[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM, fused=True)


def adamw(parameters: Iterator[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, eps=EPSILON, fused=True)


class Way:
    """Plain torch on this rank alone; subclasses exchange."""

    name = ALONE

    def __init__(self, case: Task, batches: Sequence[Batch], rule: Rule = plain, loss: Loss = cross_entropy) -> None:
        self.model, self.batches, self.loss, self.steps = case.model(), batches, loss, 0
        self.called = self.model
        self.optimizer = rule(self.model.parameters(), case.rate)

    def step(self) -> None:
        """Takes one step, as a trainer writes it. Exchanges that it leaves pending may end in the next step."""
        x, y = self.batches[self.steps % len(self.batches)]
        self.optimizer.zero_grad()
        self.loss(self.called(x), y).backward()
        self.update()
        self.steps += 1

    def update(self) -> None:
        self.optimizer.step()

    def wait(self) -> None:
        """Waits until the parameters are complete after the last step."""

    def close(self) -> None:
        """Collective."""

    def parameters(self) -> list[Tensor]:
        self.wait()
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    @contextmanager
    def watch(self) -> Iterator[list[float]]:
        """Appends to the list the seconds from the last gradient of a backward pass until the first layer of the
        next forward pass runs. Its hooks run after all other hooks of the same layer."""
        tails, last = list[float](), 0.0

        def gradient(_: Tensor) -> None:
            nonlocal last
            last = time.perf_counter()

        def forward(*_: object) -> None:
            nonlocal last
            if last:
                tails.append(time.perf_counter() - last)
                last = 0.0

        first = next(module for module in self.model.modules() if list(module.parameters(recurse=False)))
        hooks = [parameter.register_post_accumulate_grad_hook(gradient) for parameter in self.model.parameters()]
        hooks.append(first.register_forward_pre_hook(forward))
        try:
            yield tails
        finally:
            for hook in hooks:
                hook.remove()


class OverGloo(Way):
    """DistributedDataParallel with its fastest settings that keep the results: gradients lie in its buckets, and
    each rank keeps its own BatchNorm buffers, as the other ways do."""

    name = DDP

    def __init__(
        self,
        case: Task,
        batches: Sequence[Batch],
        rule: Rule = plain,
        loss: Loss = cross_entropy,
        bucket: float | None = None,
    ) -> None:
        """bucket: MB of one bucket; None for DDP's default."""
        super().__init__(case, batches, rule, loss)
        with warnings.catch_warnings():  # torch 2.13 renames it, and 2.4 lacks the new name
            warnings.simplefilter("ignore", FutureWarning)
            self.called = nn.parallel.DistributedDataParallel(
                self.model, gradient_as_bucket_view=True, broadcast_buffers=False, bucket_cap_mb=bucket
            )


class ByHpcomm(Way):
    """name: STEP, BACKWARD or WAITS."""

    def __init__(
        self,
        case: Task,
        batches: Sequence[Batch],
        ctx: hpcomm.Context,
        name: str,
        rule: Rule = plain,
        loss: Loss = cross_entropy,
    ) -> None:
        import hpcomm.torch  # noqa: PLC0415 - the other ways do without

        self.name = name
        super().__init__(case, batches, rule, loss)
        self.wrapped = hpcomm.torch.DistributedOptimizer(
            self.optimizer, ctx, self.model, apply="backward" if name == BACKWARD else "step", overlap=name != WAITS
        )
        self.optimizer = self.wrapped

    def wait(self) -> None:
        self.wrapped.wait()

    def close(self) -> None:
        self.wrapped.close()


def make(name: str, case: Task, ctx: hpcomm.Context, rule: Rule = plain, loss: Loss = cross_entropy) -> Way:
    """One of NAMES."""
    batches = case.batches(ctx.rank)
    if name == ALONE:
        return Way(case, batches, rule, loss)
    if name == DDP:
        return OverGloo(case, batches, rule, loss)
    return ByHpcomm(case, batches, ctx, name, rule, loss)


def differing(found: Sequence[Tensor], expected: Sequence[Tensor], start: Sequence[Tensor], tolerance: float) -> int:
    """Counts the elements that differ from the expected ones by more than rounding, or are not finite. tolerance:
    relative to the distance that the farthest element of a tensor has moved."""
    wrong = 0
    for own, theirs, first in zip(found, expected, start, strict=True):
        limit = tolerance * (theirs - first).abs().max() + 4 * torch.finfo(theirs.dtype).eps * theirs.abs().max()
        wrong += int((~((own - theirs).abs() <= limit)).sum())
    return wrong


# ---- Gloo ------------------------------------------------------------------------------------------------------------


@contextmanager
def gloo(comm: MPI.Intracomm, interface: str = "", address: str = "") -> Iterator[None]:
    """Makes torch's process group of these ranks, over loopback or over an interface on which rank 0 has this
    address."""
    folder, store = None, None
    if interface:
        port = 0
        if comm.rank == 0:
            with socket.create_server((address, 0)) as free:
                port = free.getsockname()[1]
        store = f"tcp://{address}:{comm.bcast(port)}"
    else:
        folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
        store = f"file://{folder}/gloo"
    os.environ["GLOO_SOCKET_IFNAME"] = interface or "lo"
    dist.init_process_group("gloo", init_method=store, rank=comm.rank, world_size=comm.size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        if folder is not None and comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
