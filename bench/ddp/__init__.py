"""Training steps of DDP with the hook of hpcomm.torch, and of FSDP2 over its backend."""
