"""Checkpoints: what is restored trains on bit for bit, under any plan, or is refused on every rank."""

import io
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads, through_a_file
from flat import grouped
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcomm
from hpcomm import (
    ASYNC,
    SGD,
    Adam,
    AdamW,
    Average,
    Exchange,
    InvalidArgument,
    Momentum,
    Nesterov,
    ParameterServer,
    Plan,
    optim,
)
from hpcomm.exchange.shards import Kind, Part, RuleKind, Span, blank, found, parts
from hpcomm.plan import Edge, Row

F32 = np.float32
SHAPES = {"w": (61, 53), "b": (53,), "s": ()}


def random(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(F32) for name, shape in SHAPES.items()}


def train(ex: Exchange, rank: int, first: int, last: int) -> dict[str, Any]:
    for step in range(first, last):
        ex.step(random(100 * step + rank + 1))
    return {name: value.copy() for name, value in ex.params.items()}


def assert_same(have: dict[str, Any], want: dict[str, Any]) -> None:
    for name, value in want.items():
        np.testing.assert_array_equal(have[name], value, err_msg=name)


RULES: list[optim.AnyRule] = [
    SGD(lr=0.1),
    Momentum(lr=0.1),
    Nesterov(lr=0.1, weight_decay=0.01),
    Adam(),
    AdamW(),
    Average(),
]


@pytest.mark.some(15)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(
    "other",
    [
        {},
        {"chunk_bytes": 64, "cores": 3},
        {"topology": ParameterServer("CC", servers=[2]), "chunk_bytes": 1 << 20},
        {"progress": "thread", "shared_params": True, "depth": 2, "transport": "shm"},
        {"chunk_bytes": 192, "transport": "tcp"},
    ],
    ids=["the same plan", "other chunks", "another server", "other memory", "over tcp"],
)
def test_three_steps_and_three_after_a_restart_are_six(
    rule: optim.AnyRule, other: dict[str, Any], ranks_by: str
) -> None:
    other = {"transport": ranks_by, **other}
    transport = other.pop("transport")
    shards: list[Any] = [None] * 3
    saved: list[Any] = [None] * 3
    want: list[Any] = [None] * 3

    def before(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=rule, chunk_bytes=1024, progress="inline")
        saved[context.rank] = train(ex, context.rank, 0, 3)
        shards[context.rank] = through_a_file(ex.state_dict())
        context.barrier()  # nobody pushes before all have saved
        want[context.rank] = train(ex, context.rank, 3, 6)

    def after(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(7), rule=rule, **grouped({"chunk_bytes": 1024, "progress": "inline", **other}))
        train(ex, context.rank, 10, 12)  # to be forgotten
        ex.load_state_dict(shards[:: -1 if context.rank else 1])
        assert_same(dict(ex.params), saved[context.rank])
        context.barrier()  # one copy may be shared
        assert_same(train(ex, context.rank, 3, 6), want[context.rank])

    run_threads(3, before)
    run_threads(3, after, transport=transport)


def test_an_open_file_is_a_shard() -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=RULES[0], progress="inline")
        saved, file = train(ex, 0, 0, 3), io.BytesIO()
        np.savez(file, **ex.state_dict())
        file.seek(0)
        train(ex, 0, 3, 5)
        with np.load(file) as shard:
            ex.load_state_dict(shard)
        assert_same(dict(ex.params), saved)

    run_threads(1, body)


@on_both
def test_own_shard_is_enough_under_the_same_plan() -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=Adam(), progress="inline")
        train(ex, context.rank, 0, 2)
        shard = ex.state_dict()
        assert set(shard["rule"]) == {"adam"}
        assert (shard["row_step"] == 2).all()
        assert all(isinstance(value, np.ndarray | int | str) for value in shard.values())
        context.barrier()
        want = train(ex, context.rank, 2, 4)
        ex.load_state_dict(shard)
        assert_same(train(ex, context.rank, 2, 4), want)

    run_threads(2, body)


@on_both
def test_a_shard_of_format_1_is_loaded() -> None:
    """In which all keys had one rule."""

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=Nesterov(lr=0.25, momentum=0.5), progress="inline")
        train(ex, context.rank, 0, 2)
        shard = ex.state_dict()
        old = {**shard, "format": 1, "rule": "nesterov", "slots": 1, "args": np.array([0.25, 0.0, 0.5])}
        context.barrier()
        want = train(ex, context.rank, 2, 4)
        ex.set(lr=0.75)
        ex.load_state_dict(old)
        assert ex.rule == Nesterov(lr=0.25, momentum=0.5)
        assert_same(train(ex, context.rank, 2, 4), want)

    run_threads(2, body)


@on_both
@pytest.mark.parametrize("graph", [False, True])
def test_every_key_goes_on_with_its_own_rule(graph: bool) -> None:
    rules: dict[str, optim.AnyRule] = {"w": Adam(), "b": SGD(lr=0.5), "s": Nesterov(lr=0.25)}
    options: dict[str, Any] = {"topology": hpcomm.graphs.ring(3), "consistency": hpcomm.NOTIFY_ACK} if graph else {}

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=rules, progress="inline", **grouped(options))
        train(ex, context.rank, 0, 2)
        ex.set(lr=0.0625, keys=["w", "s"])
        shard = ex.state_dict()
        context.barrier()
        want = train(ex, context.rank, 2, 4)
        ex.set(lr=3.0, keys="b")
        ex.load_state_dict(shard)
        assert ex.rule == {**rules, "w": Adam(lr=0.0625), "s": Nesterov(lr=0.0625)}
        assert_same(train(ex, context.rank, 2, 4), want)

    run_threads(3, body)


@on_both
def test_hyper_parameters_come_back_too() -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=Nesterov(lr=0.1))
        ex.set(lr=0.25, momentum=0.5)
        shard = ex.state_dict()
        context.barrier()
        ex.set(lr=0.75)
        ex.load_state_dict([shard])
        assert ex.rule == Nesterov(lr=0.25, momentum=0.5)
        ex.step({name: np.ones(shape, F32) for name, shape in SHAPES.items()})
        want = {name: value - F32(0.25) * F32(1.5) for name, value in random(0).items()}
        assert_same(dict(ex.params), want)

    run_threads(2, body)


@on_both
def test_rank_that_only_serves_saves_and_loads() -> None:
    shards: list[Any] = [None] * 3
    wants: list[Any] = [None] * 3
    topology = ParameterServer("NCS", servers=[1])

    def before(context: hpcomm.Context) -> None:
        with Exchange(context, random(0), topology, rule=Adam(), progress="inline") as ex:
            if context.rank == 1:
                ex.serve()
            else:
                train(ex, context.rank, 0, 3)
                ex.close()
                wants[context.rank] = {name: value.copy() for name, value in ex.params.items()}
                return
            shards[1] = ex.state_dict()

    def after(context: hpcomm.Context) -> None:
        with Exchange(context, random(9), topology, rule=Adam(lr=0.5), progress="inline") as ex:
            ex.load_state_dict([shards[1]])
            if context.rank == 1:
                ex.serve()
                return
            assert_same(dict(ex.params), wants[context.rank])
            assert ex.rule == Adam()
            train(ex, context.rank, 3, 4)

    run_threads(3, before)
    run_threads(3, after)


@on_both
def test_server_keeps_the_hyper_parameters_that_workers_have_set() -> None:
    shards: list[Any] = [None] * 3
    topology = ParameterServer("NCS", servers=[1])

    def before(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), topology, rule=Nesterov(lr=0.1), progress="inline")
        if context.rank == 1:
            ex.serve()
            assert ex.rule == Nesterov(lr=0.25, momentum=0.5)
            assert "lr=0.25" in repr(ex)
        else:
            train(ex, context.rank, 0, 2)
            ex.set(lr=0.25, momentum=0.5)
            train(ex, context.rank, 2, 3)
            shards[context.rank] = ex.state_dict()
            ex.close()
            return
        shards[1] = ex.state_dict()
        ex.close()

    def after(context: hpcomm.Context, shards: list[Any]) -> None:
        with Exchange(context, random(9), topology, rule=Nesterov(lr=0.75), progress="inline") as ex:
            ex.load_state_dict(shards)
            assert ex.rule == Nesterov(lr=0.25, momentum=0.5)
            if context.rank == 1:
                ex.serve()
            else:
                train(ex, context.rank, 3, 4)

    run_threads(3, before)
    for loaded in (shards, [shards[1]]):
        run_threads(3, partial(after, shards=loaded))


@pytest.mark.parametrize("servers", [[0, 1], [1]], ids=["an owner", "a rank without rows"])
@on_both
def test_no_checkpoint_while_something_is_under_way(servers: list[int]) -> None:
    shards: list[Any] = [None] * 2

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), ParameterServer("CS", servers), rule=SGD(), progress="inline")
        shards[context.rank] = ex.state_dict()
        context.barrier()
        shard = shards[1] if len(servers) == 1 else shards
        handle = ex.push_nb("w") if context.rank == 0 else None
        if handle is not None:
            with pytest.raises(InvalidArgument, match="rank 0: state_dict: key 'w' is under way: wait for its handle"):
                ex.state_dict()
        with pytest.raises(InvalidArgument, match="rank 0: load_state_dict: key 'w' is under way: wait for its handle"):
            ex.load_state_dict(shard)  # on every rank
        if handle is None:
            ex.push_pull("w")
        else:
            handle.wait()
        context.barrier()
        ex.load_state_dict(shard)
        assert_same(dict(ex.params), random(0))
        ends = {"timeout": -1.0} if context.rank == 1 else {}
        with pytest.raises(InvalidArgument, match=r"timeout is -1\.0: must be 0 or more seconds"):
            ex.load_state_dict(shard, **ends)  # on every rank

    run_threads(2, body)


@on_both
def test_no_checkpoint_while_a_pull_of_an_asynchronous_worker_is_under_way() -> None:
    told = threading.Event()

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), ParameterServer("CC", [1]), ASYNC, SGD(), progress="inline")
        if context.rank == 1:
            assert told.wait(20)  # it works for nobody meanwhile
            context.barrier()
            return
        handle = ex.pull_nb("w")
        try:
            with pytest.raises(InvalidArgument, match="state_dict: key 'w' is under way"):
                ex.state_dict()
        finally:
            told.set()
        handle.wait()
        ex.state_dict()
        context.barrier()

    run_threads(2, body)


@pytest.mark.some(1)
@pytest.mark.parametrize("progress", ["inline", "thread"])
@on_both
def test_a_row_is_whole_while_others_push(progress: str) -> None:
    """ASYNC: every push takes 1 from each element, and adds 1 to the row's step, at once."""
    n, most = 1 << 18, 400
    done = threading.Event()

    def body(context: hpcomm.Context) -> None:
        rule, server = Momentum(lr=1, momentum=0), ParameterServer("NCC")
        how: dict[str, Any] = {"consistency": hpcomm.ASYNC, "progress": progress, "chunk_bytes": 4 * n}
        ex = Exchange(context, {"w": np.zeros(n, F32)}, server, rule=rule, **grouped(how))
        if context.rank == 0:
            seen, shard = set(), None
            while not done.is_set():
                shard = ex.state_dict(shard)
                step = int(shard["row_step"][0])
                assert (shard["params"] == -step).all()
                assert (shard["state"] == min(step, 1)).all()
                seen.add(step)
                ex.progress()
            assert len(seen) > 2
            ex.serve()
        else:
            try:
                for _ in range(most):
                    ex.push_pull("w", np.ones(n, F32))
            finally:
                done.set()
        ex.close()

    run_threads(2, body)


def rack() -> Plan:
    """Two racks of two workers: each folds its own, and rank 0 applies both sums."""
    all_ranks = tuple(Edge(rank) for rank in range(4))
    applies = Row(0, 0, 0, 0, 64, (Edge(0, 0, 0.25), Edge(2, 1, 0.25)), all_ranks)
    return Plan(
        {"w": (64,)},
        [
            Row(0, 0, 0, 0, 64, (Edge(0), Edge(1)), (Edge(0, 2),), action="forward"),
            Row(0, 2, 0, 0, 64, (Edge(2), Edge(3)), (Edge(0, 2),), action="forward"),
            applies,
        ],
        4,
    )


def test_stages_that_own_no_parameters_save_none(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, {"w": np.zeros(64, F32)}, plan=rack(), rule=Momentum(lr=1, momentum=0.5))
        for _ in range(2):
            ex.push_pull("w", np.full(64, 2 * context.rank, F32))
        assert set(ex.params["w"]) == {-7.5}  # means of 3: 3 + 4.5
        shard = ex.state_dict()
        assert list(shard["row_step"]) == [2] * (context.rank == 0)
        context.barrier()
        ex.push_pull("w", np.full(64, context.rank, F32))
        ex.load_state_dict(shard)
        assert set(ex.params["w"]) == {-7.5}
        ex.push_pull("w", np.zeros(64, F32))
        assert set(ex.params["w"]) == {-9.75}
        ex.close()

    run_threads(4, body, **transport)


@on_both
def test_plan_of_several_owners_has_no_checkpoint() -> None:
    """Copies that apply the same pushes have one: they are equal."""

    def body(context: hpcomm.Context) -> None:
        """Each rank applies for itself alone."""
        rows = [Row(0, rank, 0, 0, 16, (Edge(0), Edge(1, -1, 1 + rank)), (Edge(rank),)) for rank in range(2)]
        ex = Exchange(context, {"w": np.zeros(16, F32)}, plan=Plan({"w": (16,)}, rows, 2), rule=SGD(lr=1))
        assert set(ex.push_pull("w", np.ones(16, F32))) == {-2 - context.rank}
        with pytest.raises(hpcomm.NotSupported, match=r"applies 32 elements of key 'w', which has 16"):
            ex.state_dict()
        with pytest.raises(hpcomm.NotSupported, match="load_state_dict"):
            ex.load_state_dict([])
        context.barrier()

    run_threads(2, body)


# ---- what is refused -------------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], Any]


def without(name: str) -> Change:
    return lambda shard: {key: value for key, value in shard.items() if key != name}


def changed(**values: Any) -> Change:
    return lambda shard: {**shard, **values}


REFUSED: dict[str, tuple[Change, str]] = {
    "nothing": (lambda shard: [], r"shards is empty"),
    "no shard": (lambda shard: [5], r"a shard is a int: must be what state_dict gave"),
    "another rule": (changed(rule="sgd"), r"a shard is of rule 'sgd' with 2 .* the exchange of 'adam' with 2"),
    "other slots": (changed(slots=1), r"with 1 values of state an element"),
    "other keys": (
        changed(keys=np.array(["w", "b", "t"])),
        r"a shard and the exchange differ in keys, such as \[\('s', 1\)",
    ),
    "other counts": (changed(counts=np.array([1, 2, 3])), r"a shard and the exchange differ in keys"),
    "another format": (changed(format=3), r"format 3: this version reads format 1 and format 2"),
    "a replica": (changed(replica=1), r"a shard holds parameters of a graph, but the exchange is one of a hub"),
    "no state": (without("state"), r"is not what state_dict gave: KeyError\('state'\)"),
    "cut params": (changed(params=np.zeros(3, F32)), r"arrays of other sizes"),
    "no rows": (
        changed(params=np.zeros(0, F32), state=np.zeros(0, F32), row_key=[], row_offset=[], row_count=[], row_step=[]),
        r"are in none of the shards: give those of every rank that owned rows",
    ),
    "two checkpoints": (
        lambda shard: [shard, {**shard, "row_step": shard["row_step"] + 1}],
        r"at step 2 and at step 3: they are of different checkpoints",
    ),
    "two sets of arguments": (
        lambda shard: [shard, {**shard, "args": shard["args"] * 2}],
        r"different rule arguments",
    ),
    "arguments out of range": (changed(args=np.array([-1, 0, 0.9, 0.9, 1e-8])), r"lr is -1"),
    "too few arguments": (changed(args=np.array([0.1])), r"a shard has 1 arguments of rule 'adam'"),
}


@on_both
@pytest.mark.parametrize("case", REFUSED)
def test_checkpoint_that_does_not_fit_is_refused_on_every_rank(case: str) -> None:
    change, told = REFUSED[case]

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=Adam(), progress="inline")
        want = train(ex, context.rank, 0, 2)
        shard = ex.state_dict()
        context.barrier()
        with pytest.raises(InvalidArgument, match=told) as raised:
            ex.load_state_dict(change(shard) if context.rank == 1 else shard)
        assert ("rank 1 refuses" in str(raised.value)) == (context.rank != 1)
        assert_same(dict(ex.params), want)  # and nothing has changed
        ex.load_state_dict(shard)
        train(ex, context.rank, 2, 3)

    run_threads(3, body)


@on_both
def test_ranks_with_different_arguments_are_told() -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, random(0), rule=SGD(lr=0.5))
        shard = ex.state_dict()
        shard["args"] = shard["args"] * (1 + context.rank)
        with pytest.raises(hpcomm.ConfigError, match=r"rank 0's shards .* \(0\.5, 0\.0\), rank 1's \(1\.0, 0\.0\)"):
            ex.load_state_dict(shard)
        context.barrier()

    run_threads(2, body)


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_of_replicas_only_ones_own_counts() -> None:
    kinds = [Kind((RuleKind("sgd", 0, 1),), {"w": 4}, rank, frozenset({"w"})) for rank in range(3)]
    span = Span("w", 0, 4)
    shards = [blank(kind, ((0.1,),), [span]) for kind in kinds]
    for rank, shard in enumerate(shards):
        shard["params"][:] = rank
        shard["row_step"][:] = 7 + rank  # replicas need not be at the same step
    for rank, kind in enumerate(kinds):
        _, clock, (piece,) = found(shards, kind, [span])
        assert clock == 0
        assert piece.step == 7 + rank
        assert set(piece.params) == {rank}
    with pytest.raises(InvalidArgument, match="none of the shards has the replica of rank 1: give that rank's shard"):
        found(shards[::2], kinds[1], [span])


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    slots=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    other=st.lists(st.floats(0, 1), max_size=12),
    shards=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_any_cut_is_found_in_any_other(
    sizes: list[int], slots: list[int], cuts: list[float], other: list[float], shards: int, seed: int
) -> None:
    rules = tuple(RuleKind(f"rule {i}", slots[i], i) for i in range(len(sizes)))  # each key has its own
    kind = Kind(rules, {f"key {i}": size for i, size in enumerate(sizes)})
    mine = tuple(tuple(float(10 * i + k) for k in range(i)) for i in range(len(sizes)))
    rng = np.random.default_rng(seed)
    params = {name: rng.random(n, F32) for name, n in kind.keys.items()}
    state = {name: rng.random((rule.slots, n), F32) for (name, n), rule in zip(kind.keys.items(), rules, strict=True)}

    def spans(at: list[float]) -> list[Span]:
        made = []
        for name, n in kind.keys.items():
            edges = sorted({0, n, *(int(x * n) for x in at)})
            made += [Span(name, low, high - low) for low, high in itertools.pairwise(edges)]
        return made

    def piece(span: Span) -> Part:
        end = span.offset + span.count
        return Part(span, 5, params[span.key][span.offset : end], state[span.key][:, span.offset : end])

    def packed(spans: list[Span]) -> dict[str, Any]:
        shard = blank(kind, mine, spans)
        shard["row_step"][:] = 5
        for place, span in zip(parts(shard, kind), spans, strict=True):
            place.params[:], place.state[:] = piece(span).params, piece(span).state
        return shard

    cut = spans(cuts)
    order = rng.permutation(len(cut))
    given_ = [packed([cut[i] for i in order[part::shards]]) for part in range(shards)]
    args, clock, have = found([{**shard, "clock": 3 + i} for i, shard in enumerate(given_)], kind, spans(other))
    assert (args, clock) == (mine, 2 + shards)
    for one in have:
        want = piece(one.span)
        assert one.step == 5
        np.testing.assert_array_equal(one.params, want.params)
        np.testing.assert_array_equal(one.state, want.state)
    with pytest.raises(InvalidArgument, match="in none of the shards"):
        found(packed(cut[1:]), kind, spans(other))
