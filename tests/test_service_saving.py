"""Saved state at a hub: jobs that save, end, and come back, also after the hub's end."""

from collections.abc import Iterator
from typing import Any

import pytest
from served import SHAPES, TOKENS, VALUES, Served, join, numbers, run

import hpcomm

RULES: dict[str, Any] = {
    "adam": hpcomm.Adam(lr=0.125),
    "momentum": {"w": hpcomm.Momentum(lr=0.5), "b": hpcomm.Nesterov(lr=0.25), "big": hpcomm.SGD(lr=0.5)},
}
CASES: dict[str, dict[str, Any]] = {
    "adam": {"rule": RULES["adam"]},
    "rules": {"rule": RULES["momentum"], "codec": "float16", "reduce": "sum"},
    "schemes": {"rule": RULES["adam"], "consistency": {"b": hpcomm.SSP(0)}},
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("hub"), drain_seconds=0, checkpoints="saved")
    yield served
    assert served.end() == 0


def exchange(ctx: hpcomm.ServiceContext, case: str, values: dict[str, Any] = VALUES) -> Any:
    return hpcomm.parameter_hub(ctx, values, servers="hub", **CASES[case])


def go(ex: Any, first: int, last: int, rank: int) -> None:
    for step in range(first, last):
        ex.step({name: numbers(shape, 100 * rank + step) for name, shape in SHAPES.items()})


def bits(ex: Any) -> str:
    return "".join(ex.params[name].tobytes().hex()[:4000] + str(float(ex.params[name].sum())) for name in SHAPES)


def begin(handle: str, token: str, case: str, save_at: int, last: int) -> tuple[int, str]:
    """Trains from the start to step last, and saves at a step. Returns the clock that was saved, and the bits."""
    with join(handle, token) as ctx:
        with exchange(ctx, case) as ex:
            go(ex, 0, 2, ctx.rank)
            ex.set(lr=0.25)
            go(ex, 2, save_at, ctx.rank)
            saved = ex.save()
            go(ex, save_at, last, ctx.rank)
            return saved, bits(ex)


def go_on(handle: str, token: str, case: str, last: int) -> tuple[int, str, str]:
    """Comes back, and trains to step last. Returns the clock at first, the bits at first, and the bits at last."""
    with join(handle, token) as ctx:
        zeros = {name: VALUES[name] * 0 for name in VALUES}
        with exchange(ctx, case, zeros) as ex:
            clock, first = ex.clock, bits(ex)
            go(ex, clock, last, ctx.rank)
            assert ex.clock == last
            return clock, first, bits(ex)


def resumed(hub: Served, job: str, *, namespace: str = "a") -> str:
    return hpcomm.create_service(hub.where, namespace, TOKENS[namespace], job, resume=True)


# ---- coming back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_job_that_comes_back_has_the_bits_of_one_that_stayed(hub: Served, case: str) -> None:
    saved = run(2, begin, hub.create("a", case), case, 3, 5)
    assert [clock for clock, _ in saved] == [3, 3]
    at_3 = run(2, begin, hub.create("a", f"{case}-3"), case, 3, 3)
    back = run(2, go_on, resumed(hub, case), case, 5)
    assert back == [[3, at_3[0][1], saved[0][1]]] * 2
