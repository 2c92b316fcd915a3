"""The backend "hpcomm" of torch.distributed: after `import hpcomm.torch`, init_process_group("hpcomm") works as with
Gloo, on tensors of the CPU."""

from .process_group import HpcommProcessGroup, register

__all__ = ["HpcommProcessGroup", "register"]
