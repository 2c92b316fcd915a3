"""Engines: the contexts of a rank share threads, and a wait in one context works for the exchanges of the others."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import on_both, run_threads

import hpcomm
from hpcomm import SGD, Engine, EngineOptions, Exchange, ParameterServer, PlanOptions

STEPS = 5


def opened(ctx: hpcomm.Context, values: int = 8, **options: Any) -> Exchange:
    return Exchange(ctx, {"w": np.zeros(values, np.float32)}, rule=SGD(lr=1), reduce="sum", **options)


# ---- waits that work for other contexts ----------------------------------------------------------------------------


def cross(here: hpcomm.Context, there: hpcomm.Context) -> list[float]:
    """Rank 0, which owns all rows, waits in the first context for rank 1. Rank 1 comes there only after rank 0 has
    worked for it in the second context."""
    update = np.ones(8, np.float32)
    first, second = (opened(ctx, topology=ParameterServer("CC"), progress="inline") for ctx in (here, there))
    for _ in range(STEPS):
        if here.rank == 0:
            pushed = second.push_pull_nb("w", update)
            first.push_pull("w", update)
            pushed.wait()
        else:
            second.push_pull("w", update)
            first.push_pull("w", update)
    found = [float(ex.params["w"][0]) for ex in (first, second)]
    for ex in (first, second):
        ex.close()
    here.barrier()
    return found


def cross_in_a_process() -> list[float]:
    world = mpi.world()
    with hpcomm.init(world, timeout=20) as here, hpcomm.init(world, timeout=20) as there:
        return cross(here, there)


@on_both
def test_wait_in_a_context_works_for_the_others_of_the_process() -> None:
    assert mpi.spawn(2, cross_in_a_process).values == [[-2.0 * STEPS] * 2] * 2


@on_both
def test_contexts_of_a_thread_share_the_engine_that_it_gives() -> None:
    def body(world: hpcomm.Context) -> list[float]:
        engine = Engine()
        here, there = (hpcomm.init(world, engine=engine, timeout=20) for _ in range(2))
        del engine  # the contexts keep it
        with here, there:
            return cross(here, there)

    assert run_threads(2, body) == [[-2.0 * STEPS] * 2] * 2


# ---- threads -------------------------------------------------------------------------------------------------------


def core_threads() -> int:
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends meanwhile
            count += (task / "comm").read_text(encoding="utf-8").startswith("hpcomm-core-")
    return count


def count_threads(apart: bool) -> list[int]:
    """How many threads work for cores after each new exchange: of 2, 2 and 3 cores, each in another context."""
    world, counts = mpi.world(), [core_threads()]
    contexts = [hpcomm.init(world, engine=Engine() if apart else None, timeout=20) for _ in range(3)]
    exchanges = []
    for ctx, cores in zip(contexts, (2, 2, 3), strict=True):
        plan = PlanOptions(cores=cores, chunk_bytes=256, reduce="sum")
        exchanges.append(opened(ctx, 1024, plan=plan, progress="thread"))
        counts.append(core_threads())
    for ex in exchanges:
        ex.step({"w": np.ones(1024, np.float32)})
        assert (ex.params["w"] == -2).all()
        ex.close()
    for ctx in contexts:
        ctx.barrier()
        ctx.close()
    return counts


@pytest.mark.parametrize(("apart", "counts"), [(False, [0, 2, 2, 3]), (True, [0, 2, 4, 7])])
def test_exchanges_of_an_engine_share_threads(apart: bool, counts: list[int]) -> None:
    assert mpi.spawn(2, count_threads, apart).values == [counts, counts]


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["own", Engine, EngineOptions()], ids=["text", "class", "options"])
def test_engine_of_another_type_is_refused(engine: Any) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match=r"engine is .*: give engine=hpcomm\.Engine\(\), or leave it out"):
        hpcomm.init(engine=engine)


def test_forked_child_cannot_use_its_parents_engine() -> None:
    engine = Engine()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(hpcomm.InvalidArgument, match="the engine belongs to the process that forked this one"):
                hpcomm.init(engine=engine)
            with hpcomm.init(engine=Engine()) as ctx:
                ctx.barrier()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with hpcomm.init(engine=engine) as ctx:
        opened(ctx).push_pull("w", np.ones(8, np.float32))
