"""The ways to train that bench.ddp compares: DDP with several hooks and backends, DistributedOptimizer and FSDP2.

Each way has its own model with the same first weights, and torch's SGD with momentum. All take the same batches.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import hpcomm
import hpcomm.torch
from bench.ddp.names import (
    BACKEND,
    EMPTY,
    FSDP_GLOO,
    FSDP_HPCOMM,
    GLOO,
    HOOK,
    HOOK_BF16,
    HOOK_BOTH,
    HOOK_FLOAT4,
    HOOK_ONEBIT,
    HOOK_TOPK,
    OPTIMIZER,
)
from bench.torch.models import TOLERANCE, Batch, Case
from bench.torch.ways import differing, plain
from hpcomm.codec import ErrorFeedback, Float4, OneBit, TopK

_ROUNDING = 1e-2  # of bfloat16, relative to the largest change in a tensor


class Way:
    """One way to train, and its model.

    Attributes:
        tolerance: how far a parameter may be from Gloo's; see bench.torch.ways.differing.
    """

    tolerance = TOLERANCE

    def __init__(self, case: Case, batches: list[Batch]) -> None:
        self.model: Any = case.model()
        self.batches, self.rate, self.steps = batches, case.rate, 0
        self.called = self.wrapped()
        self.optimizer: Any = plain(self.model.parameters(), case.rate)

    def wrapped(self) -> Any:
        """Returns the module that a step calls."""
        return self.model

    def step(self) -> None:
        x, y = self.batches[self.steps % len(self.batches)]
        self.optimizer.zero_grad()
        cross_entropy(self.called(x), y).backward()
        self.optimizer.step()
        self.steps += 1

    def parameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def due(self) -> list[Tensor]:
        """Returns the parameters after the first step as if all ranks had sent their whole gradients. Collective."""
        return self.parameters()

    def close(self) -> None:
        """Collective."""


class Ddp(Way):
    """DistributedDataParallel over one backend."""

    def __init__(self, case: Case, batches: list[Batch], group: Any) -> None:
        self.group = group
        super().__init__(case, batches)

    def wrapped(self) -> Any:
        with warnings.catch_warnings():  # torch 2.13 renames an argument, and older torch lacks the new name
            warnings.simplefilter("ignore", FutureWarning)
            return nn.parallel.DistributedDataParallel(
                self.model, process_group=self.group, gradient_as_bucket_view=True, broadcast_buffers=False
            )


def unchanged(
    state: None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Is a hook that sends nothing."""
    found: torch.futures.Future[Tensor] = torch.futures.Future()
    found.set_result(bucket.buffer())
    return found


class Empty(Ddp):
    """DDP with a hook that sends nothing: the floor."""

    def wrapped(self) -> Any:
        ddp = super().wrapped()
        ddp.register_comm_hook(None, unchanged)
        return ddp


@dataclass(frozen=True)
class Options:
    """Arguments of HookState, and the tolerance that the codec needs."""

    codec: Any = None
    tolerance: float = TOLERANCE
    more: dict[str, Any] = field(default_factory=dict)


class Hook(Ddp):
    """DDP with hpcomm's hook."""

    def __init__(self, case: Case, batches: list[Batch], group: Any, ctx: hpcomm.Context, options: Options) -> None:
        self.ctx, self.options, self.tolerance = ctx, options, options.tolerance
        super().__init__(case, batches, group)

    def wrapped(self) -> Any:
        ddp = super().wrapped()
        own = self.options
        self.state = hpcomm.torch.HookState(self.ctx, own.codec, model=ddp, **own.more)
        ddp.register_comm_hook(self.state, hpcomm.torch.allreduce_hook)
        return ddp

    def due(self) -> list[Tensor]:
        found, state = self.parameters(), self.state.state_dict()
        for i, (name, parameter) in enumerate(self.model.named_parameters()):
            held = state.get("residuals", {}).get(name, torch.zeros_like(parameter)).clone()
            dist.all_reduce(held)
            held /= self.ctx.size
            flat = torch.zeros(held.numel())
            for place, fold in state.get("folds", {}).items():
                key, _, span = place.rpartition("[")
                if key == name:
                    first, _, end = span.rstrip("]").partition(":")
                    flat[int(first) : int(end)] += fold["values"][: int(end) - int(first)]
            dist.all_reduce(flat)
            found[i] -= self.rate * (held + flat.reshape(held.shape))
        return found

    def close(self) -> None:
        self.state.close()


class Optimizer(Way):
    """DistributedOptimizer with its default options."""

    def __init__(self, case: Case, batches: list[Batch], ctx: hpcomm.Context) -> None:
        super().__init__(case, batches)
        self.optimizer = hpcomm.torch.DistributedOptimizer(self.optimizer, ctx, self.model)

    def close(self) -> None:
        self.optimizer.close()


class Fsdp(Way):
    """FSDP2: each rank keeps a part of each parameter."""

    def __init__(self, case: Case, batches: list[Batch], group: Any) -> None:
        self.mesh = DeviceMesh.from_group(group, "cpu")
        super().__init__(case, batches)

    def wrapped(self) -> Any:
        for module in self.model.modules():
            if isinstance(module, nn.TransformerEncoderLayer) or (
                isinstance(module, nn.Linear) and isinstance(self.model, nn.Sequential)
            ):
                fully_shard(module, mesh=self.mesh)
        return fully_shard(self.model, mesh=self.mesh)

    def parameters(self) -> list[Tensor]:
        return [parameter.full_tensor().detach().clone() for parameter in self.model.parameters()]


HOOKS = {
    HOOK: Options(),
    HOOK_BF16: Options("bfloat16", _ROUNDING),
    HOOK_TOPK: Options(TopK(0.01)),
    HOOK_BOTH: Options(TopK(0.01), more={"topology": hpcomm.ParameterServer(apply_at="receivers")}),
    HOOK_ONEBIT: Options(OneBit()),
    HOOK_FLOAT4: Options(ErrorFeedback(Float4())),
}
EXACT = (GLOO, BACKEND, HOOK, OPTIMIZER, FSDP_GLOO, FSDP_HPCOMM)  # ways whose later steps must be Gloo's too


def maker(name: str, case: Case, batches: list[Batch], groups: dict[str, Any], ctx: hpcomm.Context) -> Way:
    """Returns the way of this name. groups: by the names of backends. Collective."""
    gloo, own = groups["gloo"], groups["hpcomm"]
    if name in HOOKS:
        return Hook(case, batches, gloo, ctx, HOOKS[name])
    makes: dict[str, Callable[[], Way]] = {
        EMPTY: lambda: Empty(case, batches, gloo),
        GLOO: lambda: Ddp(case, batches, gloo),
        BACKEND: lambda: Ddp(case, batches, own),
        OPTIMIZER: lambda: Optimizer(case, batches, ctx),
        FSDP_GLOO: lambda: Fsdp(case, batches, gloo),
        FSDP_HPCOMM: lambda: Fsdp(case, batches, own),
    }
    return makes[name]()


def alike(tensors: list[Tensor]) -> int:
    """Counts the elements that do not have rank 0's bits. Collective."""
    wrong = 0
    for own in tensors:
        first = own.clone()
        dist.broadcast(first, 0)
        wrong += int((first != own).sum())
    return wrong


__all__ = ["EXACT", "Way", "alike", "differing", "maker"]
