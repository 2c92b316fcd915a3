"""The ways to train that bench.poseidon compares besides bench.torch.ways. Needs torch.

They are hpcomm's ways, DDP's lossy hooks, and the exact peer, which gathers inputs and gradients of outputs over Gloo.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import hpcomm
from bench.poseidon.table import AFTER, COARSE, FP16, HYBRID, PEER, POWER, SKIPPED, WAYS
from bench.torch.models import Batch, Task
from bench.torch.ways import ALONE, DDP, OverGloo, Rule, Way, plain

ONE_BUCKET = 1000.0  # MB
WHOLE = 1 << 30  # bytes of a chunk: each tensor is one, as TensorFlow places it


class Gathered(Way):
    """The exact peer: it gathers each linear layer's inputs and gradients of outputs, and multiplies them. autograd
    still computes the weight's own gradient."""

    name = PEER

    def __init__(self, case: Task, batches: Sequence[Batch], rule: Rule = plain) -> None:
        super().__init__(case, batches, rule)
        self.layers = [module for module in self.model.modules() if isinstance(module, nn.Linear)]
        self.seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        for layer in self.layers:
            layer.register_forward_hook(self._forward)

    def _forward(self, layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        x = inputs[0].detach()
        outputs.register_hook(lambda grad: self.seen.__setitem__(layer, (x, grad)))

    def update(self) -> None:
        with torch.no_grad():
            for layer in reversed(self.layers):
                layer.weight.grad = _all(self.seen[layer][1]).T @ _all(self.seen[layer][0]) / dist.get_world_size()
            rest = [p.grad for p in self.model.parameters() if p.dim() == 1 and p.grad is not None]
            flat = torch.cat(rest) / dist.get_world_size()
            dist.all_reduce(flat)
            for grad, mean in zip(rest, flat.split([grad.numel() for grad in rest]), strict=True):
                grad.copy_(mean)
        self.optimizer.step()


def _all(own: Tensor) -> Tensor:
    """The rows of all ranks."""
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own.contiguous())
    return torch.cat(every)


class Hooked(OverGloo):
    """DDP with one of its lossy hooks. PowerSGD gets one bucket: over Gloo, the ranks may order the allreduces of
    several buckets differently, and it hangs or aborts (torch 2.13)."""

    def __init__(self, case: Task, batches: Sequence[Batch], name: str, rule: Rule = plain) -> None:
        super().__init__(case, batches, rule, bucket=ONE_BUCKET if name == POWER else None)
        self.name = name
        if name == FP16:
            self.called.register_comm_hook(None, default_hooks.fp16_compress_hook)  # type: ignore[operator]
        else:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
            self.called.register_comm_hook(state, powerSGD_hook.powerSGD_hook)  # type: ignore[operator]


class Hybrid(Way):
    """hpcomm, by a way, or by its servers alone."""

    def __init__(
        self, case: Task, batches: Sequence[Batch], ctx: hpcomm.Context, name: str, rule: Rule = plain
    ) -> None:
        import hpcomm.torch  # noqa: PLC0415 - the other ways do without

        super().__init__(case, batches, rule)
        self.name = name
        self.wrapped = hpcomm.torch.DistributedOptimizer(
            self.optimizer,
            ctx,
            self.model,
            apply="after" if name == AFTER else "step",
            overlap=name != AFTER,
            way=WAYS[name],
            skip_weight_grad=name == SKIPPED,
            plan=hpcomm.PlanOptions(chunk_bytes=WHOLE if name == COARSE else None),
        )
        self.optimizer = self.wrapped

    def wait(self) -> None:
        self.wrapped.wait()

    def close(self) -> None:
        self.wrapped.close()


def make(name: str, case: Task, ctx: hpcomm.Context, rule: Rule = plain) -> Way:
    """One of table.NAMES."""
    batches = case.batches(ctx.rank)
    known: dict[str, Callable[[], Way]] = {
        ALONE: lambda: Way(case, batches, rule),
        DDP: lambda: OverGloo(case, batches, rule),
        PEER: lambda: Gathered(case, batches, rule),
        **{one: (lambda one=one: Hooked(case, batches, one, rule)) for one in (FP16, POWER)},  # type: ignore[misc]
        **{one: (lambda one=one: Hybrid(case, batches, ctx, one, rule)) for one in HYBRID},  # type: ignore[misc]
    }
    return known[name]()
