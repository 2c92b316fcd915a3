"""hpcomm.torch: data-parallel training with PyTorch in three lines (Poseidon, sections 3.1, 4.1 and 4.2).

    import hpcomm.torch

    ctx = hpcomm.init()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hpcomm.torch.DistributedOptimizer(optimizer, ctx, model)
    ...
    loss.backward()
    optimizer.step()        # as before

Gradients are exchanged while the backward pass runs. With overlap=True parameters are updated while the next forward
pass runs; by default step() waits for them.
"""

try:
    import torch as _torch
except ImportError as _missing:
    raise ImportError("hpcomm.torch needs PyTorch: pip install 'torch>=2.4'") from _missing

del _torch

from .backend import register as _register  # noqa: E402
from .checkpointer import ModelCheckpointer, restore  # noqa: E402
from .diloco import DiLoCo  # noqa: E402
from .hook import HookState, allreduce_hook  # noqa: E402
from .join import join  # noqa: E402
from .optimizer import DistributedOptimizer  # noqa: E402

__all__ = ["DiLoCo", "DistributedOptimizer", "HookState", "ModelCheckpointer", "allreduce_hook", "join", "restore"]

_register()
