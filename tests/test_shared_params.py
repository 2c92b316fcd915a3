"""shared_params saves the memory that docs/python.md states: the ranks of a host keep one copy of the parameters."""

from pathlib import Path

import mpi
import numpy as np

import hpcomm

MIB = 1 << 20
MODEL, RANKS = 64 * MIB, 4


def pss() -> int:
    """Bytes of this process, where a page that n processes map counts 1 / n."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _grown(shared: bool) -> float:
    """MiB by which this rank has grown in three steps of an exchange."""
    with hpcomm.init(mpi.world(), transport="shm") as ctx:
        names = [f"layer{i}" for i in range(16)]
        params = {name: np.zeros(MODEL // 4 // len(names), np.float32) for name in names}
        ctx.barrier()
        before = pss()
        with hpcomm.parameter_hub(ctx, params, engine=hpcomm.EngineOptions(shared_params=shared)) as exchange:
            for step in range(3):
                for name in names:
                    exchange.gradient(name)[:] = step
                    exchange.push_pull(name)
                assert all(exchange.params[name][0] == exchange.params[name][-1] for name in names)
            read = sum(float(exchange.params[name].sum()) for name in names)
            assert np.isfinite(read)
            ctx.barrier()
            grown = pss() - before
            ctx.barrier()
    return grown / MIB


def _both() -> list[float]:
    return [_grown(shared) for shared in (False, True)]


def test_shared_params_save_memory() -> None:
    ended = mpi.spawn(RANKS, _both, timeout=120)
    grown = np.mean(ended.values, axis=0)
    assert grown[0] - grown[1] > 45, grown  # three of four copies are 48 MiB a rank
