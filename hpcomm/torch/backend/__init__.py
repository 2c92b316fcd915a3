"""The backend "hpcomm" of torch.distributed, for tensors of the CPU: init_process_group("hpcomm") works as with Gloo.
`import hpcomm.torch` makes it, and torch 2.14 and newer find it by its name."""

import torch
import torch.distributed as dist

from .names import NAME

if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
    from .c10d_backend import make
else:
    from .process_group import make

__all__ = ["register"]


def register() -> None:
    """Makes "hpcomm" a backend of torch.distributed; a second call has no effect."""
    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, make, extended_api=True, devices=["cpu"])
