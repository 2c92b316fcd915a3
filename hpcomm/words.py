"""A table of words of other libraries (Horovod, PyTorch, NumPy) with hpcomm's words for the same things, for hints in
errors."""

import difflib
from collections.abc import Iterable, Mapping

_CODEC = 'give codec="float16" or codec="bfloat16"'
_MEAN = 'give reduce="mean" (the default) or reduce="sum"'
_RANKS = "the ranks come from ctx, which hpcomm.init(comm) makes of a communicator"
_HOST = "leave it out: parameters lie in the memory of the host"
_UNUSED = "leave it out: parameters without a gradient need no option"
_RULE = "give it to the rule, as in rule=hpcomm.Momentum(lr=0.1, momentum=0.9), or to the wrapped optimizer"

KEYWORDS: Mapping[str, str] = {
    "average": _MEAN,
    "backend": 'give hpcomm.init transport="tcp" or another one',
    "broadcast_buffers": 'give hpcomm.torch.DistributedOptimizer buffers="broadcast"',
    "bucket_cap_mb": "give chunk_bytes, or leave it out",
    "compression": _CODEC,
    "device_ids": _HOST,
    "dtype": _CODEC,
    "find_unused_parameters": _UNUSED,
    "gradient_accumulation_steps": "give hpcomm.torch.DistributedOptimizer backward_passes_per_step",
    "gradient_as_bucket_view": "leave it out: p.grad lies in the exchange already",
    "gradient_predivide_factor": _MEAN,
    "group": _RANKS,
    "lr": _RULE,
    "max_norm": "give hpcomm.torch.DistributedOptimizer clip_norm",
    "momentum": _RULE,
    "named_parameters": "leave it out: hpcomm takes the names of the model, as in DistributedOptimizer(optimizer, ctx, "
    "model)",
    "num_groups": "leave it out: small gradients need no groups",
    "op": _MEAN,
    "optimizer": "give rule, as in rule=hpcomm.SGD(lr=0.1), or take hpcomm.torch.DistributedOptimizer",
    "output_device": _HOST,
    "postscale_factor": _MEAN,
    "prescale_factor": _MEAN,
    "process_group": _RANKS,
    "process_set": _RANKS,
    "root_rank": "leave it out: all ranks start with the values of rank 0",
    "sparse_as_dense": 'give hpcomm.torch.DistributedOptimizer sparse="dense" (the default)',
    "static_graph": _UNUSED,
}

SETTINGS: Mapping[str, str] = {
    "backend": 'give transport, as in transport="shm,tcp"',
    "device_id": _HOST,
    "group_name": "leave it out",
    "init_method": "leave it out: hpcomm reads MASTER_ADDR and MASTER_PORT; give master_port for another port",
    "rank": "start the ranks by torchrun, mpirun or srun, or give comm",
    "store": "give comm, an object with rank, size and allgather",
    "world_size": "start the ranks by torchrun, mpirun or srun, or give comm",
}

_CONTEXT = "it is the context's, as in ctx = hpcomm.init() and then ctx.{}"
_OF_CONTEXT = (
    *("allgather", "allgather_objects", "allreduce", "alltoall", "barrier", "broadcast_object", "gather"),
    *("gather_objects", "local_rank", "local_size", "rank", "reduce", "reduce_scatter", "scatter", "size"),
)
_STARTS = "leave it out: the ranks start with the values of rank 0"

ATTRIBUTES: Mapping[str, str] = {  # attributes of the module hpcomm
    **{name: _CONTEXT.format(name) for name in _OF_CONTEXT},
    "DiLoCo": "it is hpcomm.torch.DiLoCo",
    "DistributedDataParallel": "there is hpcomm.torch.DistributedOptimizer, which wraps the optimizer",
    "DistributedOptimizer": "it is hpcomm.torch.DistributedOptimizer",
    "broadcast_optimizer_state": _STARTS,
    "broadcast_parameters": _STARTS,
    "init_process_group": "it is hpcomm.init",
    "shutdown": "it is ctx.close()",
}

CODECS: Mapping[str, str] = {  # names of dtypes
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "half": "float16",
}


def unexpected(call: str, name: str, known: Iterable[str]) -> TypeError:
    """Returns the error for an unknown keyword of a call. The error names hpcomm's word for the keyword, or, if there
    is none, the most similar known keyword."""
    every = sorted(known)
    hint = KEYWORDS.get(name)
    if hint is None:
        near = difflib.get_close_matches(name, every, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(every)}"
    return TypeError(f"{call}() got an unexpected keyword argument {name!r}: {hint}")
