"""Benchmarks of hpcomm. Run one as `mpirun -n 2 python -m bench.put_lat`, all of them as `python -m bench.summary`."""
