"""The benchmark of collectives: hpcomm beside Gloo, MPIs and Mooncake. python -m bench.collectives runs it."""
