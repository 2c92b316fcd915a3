"""The names of the ways that bench.ddp compares. Needs no torch."""

EMPTY = "empty hook"
GLOO = "DDP over Gloo"
BACKEND = "DDP over hpcomm"
HOOK = "hook"
HOOK_BF16 = "hook, bfloat16"
HOOK_TOPK = "hook, TopK(0.01)"
HOOK_BOTH = "hook, TopK(0.01) both ways"
HOOK_ONEBIT = "hook, OneBit()"
HOOK_FLOAT4 = "hook, Float4()"
OPTIMIZER = "DistributedOptimizer"
FSDP_GLOO = "FSDP2 over Gloo"
FSDP_HPCOMM = "FSDP2 over hpcomm"
NAMES = (
    EMPTY,
    GLOO,
    BACKEND,
    HOOK,
    HOOK_BF16,
    HOOK_TOPK,
    HOOK_BOTH,
    HOOK_ONEBIT,
    HOOK_FLOAT4,
    OPTIMIZER,
    FSDP_GLOO,
    FSDP_HPCOMM,
)
PEER = {name: FSDP_GLOO if name == FSDP_HPCOMM else GLOO for name in NAMES}  # what a way is compared with
