"""Starts that travel together: the bits of starts by themselves, and no start is kept while its rank waits."""

import threading
from typing import Any

import numpy as np
import pytest
from conftest import run_threads
from numpy.typing import NDArray

import hpcomm
from hpcomm import Exchange, InvalidArgument, Momentum, Timeout

KEYS = 60  # small ones, beside one that is larger than what is kept
NAMES = [f"k{i}" for i in range(KEYS)]


def values(seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-9, 9, 50_000 if i == KEYS // 2 else 1 + i).astype(np.float32)
        for i, name in enumerate(NAMES)
    }


def trained(transport: dict[str, Any], *, together: bool, split: bool) -> list[dict[str, bytes]]:
    def body(context: hpcomm.Context) -> dict[str, bytes]:
        with Exchange(context, values(0), rule=Momentum(lr=0.5), split=split, timeout=20) as ex:
            start = ex.split.fold_nb if split else ex.push_pull_nb
            for n in range(3):
                grads = values(10 * n + context.rank + 1)
                if not together:
                    handles = [start(name, grads[name]) for name in NAMES]
                else:
                    with ex.together():
                        handles = [start(name, grads[name]) for name in NAMES[:20]]
                        if n == 1:  # the others wait for what is kept: a wait sends it
                            handles[3].wait()
                        handles += [start(name, grads[name]) for name in NAMES[20:]]
                for handle in handles:
                    handle.wait()
                if split:
                    with ex.together():
                        handles = [ex.split.apply_nb(name) for name in NAMES]
                    for handle in handles:
                        handle.wait()
            return {name: value.tobytes() for name, value in ex.params.items()}

    return run_threads(3, body, **transport)


@pytest.mark.parametrize("split", [False, True])
def test_together_gives_the_bits_of_starts_by_themselves(split: bool, transport: dict[str, Any]) -> None:
    assert trained(transport, together=True, split=split) == trained(transport, together=False, split=split)


def test_a_rank_that_stops_in_the_middle_of_a_set_is_named_and_nothing_is_lost(transport: dict[str, Any]) -> None:
    named, halfway = threading.Barrier(3), threading.Barrier(3)

    def body(context: hpcomm.Context) -> tuple[list[int], dict[str, bytes]]:
        waited: list[int] = []
        with Exchange(context, values(0), rule=Momentum(lr=0.5), timeout=20) as ex:
            grads = values(context.rank + 1)
            with ex.together():
                handles = [ex.push_pull_nb(name, grads[name]) for name in NAMES[:20]]
                halfway.wait()
                if context.rank == 2:
                    named.wait()
                handles += [ex.push_pull_nb(name, grads[name]) for name in NAMES[20:]]
            if context.rank != 2:
                with pytest.raises(Timeout) as caught:
                    handles[-1].wait(0.05)
                waited = [*caught.value.waiting_for, *(culprit.rank for culprit in caught.value.culprits)]
                named.wait()
            for handle in handles:
                handle.wait()
            return waited, {name: value.tobytes() for name, value in ex.params.items()}

    found = run_threads(3, body, **transport)
    assert all(params == found[0][1] for _, params in found)
    assert all(2 in waited for waited, _ in found[:2])


def test_close_in_the_block_ends_it_and_a_closed_exchange_refuses_it() -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, values(0), rule=Momentum(lr=0.5), timeout=20)
        with ex.together():
            for name, grad in values(context.rank).items():
                ex.push_nb(name, grad)
            ex.close()
        with pytest.raises(InvalidArgument, match="closed"), ex.together():
            pass

    run_threads(2, body, transport="tcp")
