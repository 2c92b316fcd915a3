"""Schemes of keys side by side in one exchange: each key goes as it would in an exchange of its own."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from flat import grouped
from hypothesis import given, settings

import hpcomm
from hpcomm import ASYNC, BSP, NOTIFY_ACK, SGD, SSP, Adam, Average, Consistency, Exchange, Hierarchy, InvalidArgument
from hpcomm.codec import FLOAT32, TopK
from hpcomm.graphs import ring
from hpcomm.plan import Plan
from hpcomm.topology import HostGraph, ParameterServer, Request, Topology

F32 = np.float32
SHAPES = {"a": (40, 10), "b": (7,), "c": (300,), "d": (5, 5)}
TOPOLOGY: dict[str, Any] = {"c": ring, "a": Hierarchy([[0, 1], [2]])}  # and b, d flat
CONSISTENCY = {"c": NOTIFY_ACK, "b": ASYNC}  # and a, d BSP
RULES = {"a": Adam(lr=0.5), "b": SGD(lr=1.0), "c": Average(), "d": SGD(lr=0.5)}


LAST_SERVES = ParameterServer("NCC", [2])
FLAT = Plan.hub(SHAPES, range(3), range(3), 3)


def params() -> dict[str, Any]:
    return {name: np.arange(np.prod(shape), dtype=F32).reshape(shape) for name, shape in SHAPES.items()}


def update(name: str, rank: int, step: int) -> Any:
    return np.full(SHAPES[name], (rank + 1) * (step + 1), F32)


def mixed(ctx: hpcomm.Context, **more: Any) -> Exchange:
    return Exchange(
        ctx, params(), TOPOLOGY, CONSISTENCY, RULES, **grouped({"reduce": "sum", "chunk_bytes": 256, **more})
    )


def alone(ctx: hpcomm.Context, name: str) -> Exchange:
    how = {"chunk_bytes": 256} if name == "c" else {"chunk_bytes": 256, "reduce": "sum"}
    return Exchange(
        ctx,
        {name: params()[name]},
        TOPOLOGY.get(name, "flat"),
        CONSISTENCY.get(name, BSP),
        RULES[name],
        **grouped(how),
    )


@on_both
@pytest.mark.parametrize("progress", ["inline", "thread"])
def test_each_key_goes_as_it_would_alone(progress: str) -> None:
    """Bit for bit; what is ASYNC when all have met."""

    def body(ctx: hpcomm.Context) -> None:
        with mixed(ctx, progress=progress) as ex:
            assert list(ex.params) == list(ex.codecs) == list(SHAPES)
            ex.set(keys="d", lr=0.25)
            rules: Any = ex.rule
            assert {name: rule.lr for name, rule in rules.items() if name != "c"} == {"a": 0.5, "b": 1, "d": 0.25}
            for step in range(4):
                if step % 2:
                    ex.step({name: update(name, ctx.rank, step) for name in SHAPES})
                else:
                    pulls = [ex.push_pull_nb(name, update(name, ctx.rank, step)) for name in ("c", "d", "a", "b")]
                    for pull in pulls:
                        pull.wait()
            assert ex.version() == 4
            ctx.barrier()
            ex.pull("b")
            for name in SHAPES:
                with alone(ctx, name) as one:
                    if name == "d":
                        one.set(lr=0.25)
                    for step in range(4):
                        one.push_pull(name, update(name, ctx.rank, step))
                    ctx.barrier()
                    if name == "b":
                        one.pull("b")
                    assert np.array_equal(ex.params[name], one.params[name]), name
            assert ex.stats().pushes == 16
            assert sum(peer.bytes_sent for peer in ex.stats().peers) == ex.stats().bytes_sent

    run_threads(3, body)


@on_both
def test_reduce_is_for_the_servers_of_a_mix() -> None:
    """A graph has weights, whether ranks or hosts are its nodes."""

    def body(ctx: hpcomm.Context) -> None:
        hosts = HostGraph(ring, ((0, 1), (2,)))
        rules = {**dict.fromkeys(("a", "b", "d"), SGD(lr=1.0)), "c": Average()}
        with Exchange(ctx, params(), {"c": hosts}, rule=rules, reduce="sum") as ex:
            ex.step({name: update(name, ctx.rank, 0) for name in SHAPES})
            assert all(np.array_equal(ex.params[name], params()[name] - 6) for name in ("a", "b", "d"))
            assert (ex.params["c"] == 2.25).all()  # of 1.5 and 3

    run_threads(3, body)


@on_both
def test_a_step_begins_with_the_key_that_was_given_first() -> None:
    """The core numbers the keys scheme by scheme: "d" goes with "a"."""

    def body(ctx: hpcomm.Context) -> None:
        with mixed(ctx) as ex:
            names = {key.index: name for name, key in ex._every.items()}
            assert [names[i] for i in ex._in_place.order] == list(SHAPES) != [names[i] for i in range(4)]

    run_threads(3, body)


def test_auto_leaves_models_in_float32() -> None:
    """The core refuses them as pieces, however much faster those are."""

    def body(ctx: hpcomm.Context) -> None:
        values = {"g": np.zeros(1 << 16, F32), "m": np.zeros(1 << 16, F32)}
        rules = {"g": SGD(lr=1.0), "m": Average()}
        with Exchange(ctx, values, {"m": ring}, rule=rules, codec="auto") as ex:
            assert ex.codecs["m"] == FLOAT32
            told = ex.stats().codecs
            assert told["m"].why.startswith("its rule is Average")
            assert told["g"].why.startswith("TopK(0.01) is to take")

    run_threads(2, body, transport="tcp")


@on_both
def test_a_key_of_one_slot_keeps_it_beside_others() -> None:
    """The array of gradient(name) may be pushed again and again; "c" has four slots here, of which each push takes the
    next."""

    def body(ctx: hpcomm.Context) -> None:
        with Exchange(ctx, params(), {"c": ring}, {"c": SSP(2)}, SGD(lr=1.0), codec="bfloat16") as ex:
            own = ex.gradient("a")
            own[:] = ex.gradient("c").dtype.type(1)
            for _ in range(3):
                ex.push_pull("a", own)
                ex.push_pull("c")
            assert np.array_equal(ex.params["a"], params()["a"] - 3)
            assert ex.gradient("a") is own

    run_threads(3, body)


@dataclass(frozen=True)
class Aside(Topology):
    """Rank 0 folds what the others push."""

    def roles(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(range(size)), (0,)

    def compile(self, request: Request) -> Plan:
        return Plan.hub(request.keys, range(1, request.size), [0], request.size, **request.cut)


@on_both
def test_a_checkpointer_looks_at_the_servers_of_a_mix(tmp_path: Path) -> None:
    """Beside keys of a graph, too, a row may not change between the steps of its owner."""

    def body(ctx: hpcomm.Context) -> None:
        with (
            Exchange(ctx, params(), {"c": ring, "d": Aside()}, {"c": NOTIFY_ACK}) as ex,
            pytest.raises((hpcomm.NotSupported, InvalidArgument), match="which rank 0 owns, gets no update"),
        ):
            hpcomm.Checkpointer(ex, tmp_path)

    run_threads(3, body)


OTHERS: list[Any] = [BSP, ASYNC, SSP(2), Consistency(quorum=2, late="drop")]


@settings(max_examples=12)
@given(st.lists(st.sampled_from(OTHERS), min_size=3, max_size=3), st.booleans())
def test_any_consistencies_stand_side_by_side(consistencies: list[Any], graph: bool) -> None:
    """The sum of all updates of a key, but for those that were late; steps end for all."""
    names = ["a", "b", "d"]

    def body(ctx: hpcomm.Context) -> None:
        topology = {"c": ring} if graph else "flat"
        its = {**dict(zip(names, consistencies, strict=True)), **({"c": NOTIFY_ACK} if graph else {})}
        rules = {**dict.fromkeys(SHAPES, SGD(lr=1.0)), "c": Average()}
        with Exchange(ctx, params(), topology, its, rules, reduce="sum", progress="inline") as ex:
            for _ in range(3):
                ex.step({name: np.ones(shape, F32) for name, shape in SHAPES.items()})
            left_out = ex.stats().dropped
            ctx.barrier()
            for name in names:
                if its[name].quorum is None:
                    ex.pull(name)
            every = [int.from_bytes(part, "little") for part in ctx.allgather(left_out.to_bytes(8, "little"))]
            if not any(every):
                assert all(
                    np.array_equal(ex.params[name], params()[name] - 9) for name in names if its[name].quorum is None
                )

    run_threads(3, body)


@on_both
@pytest.mark.parametrize(
    ("topology", "consistency", "more", "sentence"),
    [
        ("flat", {"x": BSP}, {}, "consistency has an entry for 'x', which is not a key"),
        ("flat", {"a": "BSP"}, {}, "consistency of 'a' is 'BSP': must be a Consistency"),
        ("flat", {"a": ASYNC}, {"shared_params": True}, "shared_params"),
        ({"a": Hierarchy(top="ring")}, {"a": SSP(2)}, {}, "key 'a': consistency is SSP"),
        (
            {**dict.fromkeys(("a", "b", "d"), LAST_SERVES), "c": ring},
            BSP,
            {},
            r"ranks \(0, 1\) work for some keys and ranks",
        ),
        ("flat", {"a": ASYNC}, {"plan": FLAT}, "plan is a Plan, which is of one scheme"),
    ],
)
def test_every_rank_hears_why_a_mix_is_refused(topology: Any, consistency: Any, more: Any, sentence: str) -> None:
    def body(ctx: hpcomm.Context) -> None:
        make: Callable[[], Exchange] = partial(mixed, ctx)
        if ctx.rank == 2:
            make = partial(Exchange, ctx, params(), topology, consistency, **grouped(more))
        with pytest.raises(hpcomm.HpcommError, match=sentence):
            make()
        with mixed(ctx, progress="inline") as ex:  # they still agree on what comes next
            ex.step({name: update(name, ctx.rank, 0) for name in SHAPES})

    run_threads(3, body)


@on_both
def test_ranks_with_other_schemes_are_all_told() -> None:
    def body(ctx: hpcomm.Context) -> None:
        make: Callable[[], Exchange] = partial(Exchange, ctx, params()) if ctx.rank == 1 else partial(mixed, ctx)
        with pytest.raises(hpcomm.ConfigError, match="rank 1 gives 1 configurations of keys and rank 0 gives 3"):
            make()

    run_threads(3, body)


@on_both
def test_a_checkpoint_of_a_mix_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Also in an exchange whose keys come in another order; of c each rank has a model of its own."""

    def train(ex: Exchange, rank: int, begin: int) -> None:
        for step in range(begin, begin + 3):
            ex.step({name: update(name, rank, step) for name in SHAPES})

    def body(ctx: hpcomm.Context) -> None:
        codecs = {"d": TopK(0.4)}
        with mixed(ctx, codec=codecs) as ex, hpcomm.Checkpointer(ex, tmp_path, every=3) as saves:
            for step in range(3):
                ex.step({name: update(name, ctx.rank, step) for name in SHAPES})
                ctx.barrier()
                ex.pull("b")
                saves.after(step + 1)
                ctx.barrier()  # no update of the next step is in what is saved
            shards = [ex.state_dict()]
            train(ex, ctx.rank, 3)
            ctx.barrier()
            ex.pull("b")
            kept = {name: value.copy() for name, value in ex.params.items()}
        turned = dict(reversed(params().items()))
        with Exchange(ctx, turned, TOPOLOGY, CONSISTENCY, RULES, reduce="sum", chunk_bytes=256, codec=codecs) as ex:
            restored = hpcomm.restore(ex, tmp_path)
            assert restored is not None
            assert restored.step == 3
            train(ex, ctx.rank, 3)
            ctx.barrier()
            ex.pull("b")
            assert all(np.array_equal(ex.params[name], value) for name, value in kept.items())
        with (
            Exchange(ctx, params(), "flat", BSP, RULES) as ex,
            pytest.raises(InvalidArgument, match=r"a shard holds parameters of a graph, but .* for key 'c'"),
        ):
            ex.load_state_dict(shards)

    run_threads(3, body)


@on_both
def test_a_mix_is_not_rebuilt_without_a_rank() -> None:
    def body(ctx: hpcomm.Context) -> None:
        ex = mixed(ctx, progress="inline")
        ex.step({name: update(name, ctx.rank, 0) for name in SHAPES})
        if ctx.rank == 2:
            ctx.barrier()
            ctx.abort("test")
            raise Left

        def go_on() -> None:
            ctx.barrier()  # rank 2 may be through, and gone, before the others are
            while True:
                ex.step({name: update(name, ctx.rank, 0) for name in SHAPES})

        with pytest.raises(hpcomm.PeerFailed):
            go_on()
        with pytest.raises(hpcomm.NotSupported, match="recover: key 'a' is with servers under BSP, key 'b' is"):
            hpcomm.recover(ex)
        assert set(ex.state_dict()["row_key"].tolist()) >= {0}  # what is here can still be saved
        raise Left

    run_threads(3, body, timeout=10)


def test_the_schemes_of_the_docs_train() -> None:
    """Keys with servers have the updates; the gates of ranks differ less than gates that are never averaged."""
    text = (Path(__file__).resolve().parents[1] / "docs/topology.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python.*?\n(.*?)```", text, re.DOTALL) if '"gate": hpcomm' in code)

    def body(ctx: hpcomm.Context) -> dict[str, Any]:
        def gradient(w: Any, batch: int) -> Any:
            return np.full(w.shape, ctx.rank + 1, F32)

        names: dict[str, Any] = {"hpcomm": hpcomm, "np": np, "ctx": ctx, "batches": range(3), "gradient": gradient}
        exec(code, names)
        with names["ex"] as ex:
            return {name: value.copy() for name, value in ex.params.items()}

    every = run_threads(3, body)
    assert all(np.array_equal(one["dense"], every[0]["dense"]) for one in every)
    assert all((one["dense"] < 0).all() and (one["embedding"] < 0).all() for one in every)
    gates = [float(one["gate"].flat[0]) for one in every]
    assert len(set(gates)) > 1
    assert max(gates) - min(gates) < 0.1 * 2 * 3  # the spread of gates that are never averaged
