"""Training steps with PyTorch beside DDP over Gloo."""
