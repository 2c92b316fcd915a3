"""The communication hook of DistributedDataParallel, under any backend of torch.distributed:
`ddp.register_comm_hook(HookState(ctx, codec=...), allreduce_hook)` averages gradients with hpcomm."""

from .state import HookState, allreduce_hook

__all__ = ["HookState", "allreduce_hook"]
