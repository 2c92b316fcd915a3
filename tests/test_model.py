"""The cost model: exchanges count and allocate what it predicts, and it answers for clusters that nobody has."""

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped
from hpcomm._ffi import ffi, lib
from hypothesis import assume, given
from hypothesis import strategies as st

import hpcomm
from hpcomm import (
    Average,
    Exchange,
    Hierarchy,
    HpcommError,
    InvalidArgument,
    ParameterServer,
    Plan,
    Tree,
    measure,
    model,
)
from hpcomm.codec import FLOAT32, Auto, OneBit, TopK
from hpcomm.graphs import bytes_per_step, complete, hypercube, one_peer_exponential, random_regular, ring, root_expander
from hpcomm.measure import hosts_of
from hpcomm.model import PARAMETERS, UPDATES, Bandwidths, CodecRates, Rates
from hpcomm.plan import Edge, Key, Row

F32 = np.float32
SHAPES = {"w": (6, 300), "b": (70,)}
RANKS, STEPS = 4, 4

Bytes = Counter[tuple[str, int, int]]  # by stage, source and target


def predicted(load: model.Load) -> Bytes:
    found: Bytes = Counter()
    sent = load.sent
    for stage, source, target, nbytes in zip(sent.stage, sent.source, sent.target, sent.nbytes, strict=True):
        found[model.STAGES[stage], int(source), int(target)] += int(nbytes)
    return found


def loads_of_steps(ex: Exchange, hosts: list[int]) -> list[model.Load]:
    phases: list[Any] = [graph.dense() for graph in ex.graph] or [None]
    return [model.load_of(ex.plan, hosts, phases[step % len(phases)]) for step in range(STEPS)]


# ---- bytes, as exchanges count them ----------------------------------------------------------------------------------

TWO_HOSTS = [[0, 1], [2, 3]]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "hub": ("flat", {}),
    "one server": (ParameterServer("CS", servers=[2]), {"depth": 2}),
    "servers of their own": (ParameterServer("NCC", servers=[3]), {}),
    "hub in 16 bits": ("flat", {"codec": "float16", "codec_out": "bfloat16"}),
    "hub, receivers": (ParameterServer("CS", servers=[1], apply_at="receivers"), {}),
    "hosts": (Hierarchy(TWO_HOSTS), {}),
    "hosts in 16 bits": (Hierarchy(TWO_HOSTS), {"codec": "bfloat16", "codec_out": "float16"}),
    "hosts with a leader each": (Hierarchy(TWO_HOSTS, leaders=[1, 2]), {}),
    "ring of hosts": (Hierarchy([[0, 1], [2], [3]], top="ring"), {}),
    "racks": (Hierarchy([[0], [1], [2], [3]], racks=[[0, 1], [2, 3]]), {}),
    "hosts, receivers": (Hierarchy([[0, 1], [2], [3]], top="ring", apply_at="receivers"), {}),
    "tree": (Tree(), {"rule": Average()}),
    "chain": (Tree(arity=1, root=2), {"rule": Average()}),
    "by key": ({"w": Hierarchy(TWO_HOSTS)}, {}),
    "graph": (ring, {"rule": Average()}),
    "graph of all": (complete, {"rule": Average(), "codec": "float16"}),
    "graph that turns": (one_peer_exponential, {"rule": Average()}),
}


@on_both
@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_that_an_exchange_counts(case: str) -> None:
    topology, options = CASES[case]

    def body(ctx: hpcomm.Context) -> tuple[list[model.Load], Bytes]:
        hosts = hosts_of(ctx)
        params = {name: np.zeros(shape, F32) for name, shape in SHAPES.items()}
        with Exchange(ctx, params, topology, progress="inline", chunk_bytes=1024, **grouped(options)) as ex:
            for _ in range(STEPS):
                for name in ex.params:
                    empty = isinstance(topology, Tree) and topology.above(ctx.size)[ctx.rank] >= 0
                    ex.push_pull(name, None if empty else np.ones(SHAPES[name], F32))
            if len(ex.plan.workers) == ctx.size:
                ctx.barrier()  # others' parameters may still be on their way through this rank
            elif not ex.params:
                ex.serve()
            sent = {(one.stage, ctx.rank, one.rank): one.bytes for one in ex.stats().traffic}
            return loads_of_steps(ex, hosts), Counter(sent)

    every = run_threads(RANKS, body)
    counted: Bytes = sum((sent for _, sent in every), Counter())
    assert counted == sum(map(predicted, every[0][0]), Counter())
    assert counted


@pytest.mark.parametrize("topology", ["flat", Hierarchy(TWO_HOSTS), ParameterServer(apply_at="receivers")], ids=str)
def test_pieces_take_the_part_that_their_codec_leaves(topology: Any) -> None:
    """OneBit leaves the same part of every piece of whole rows, but for the 16 bytes of its head."""

    def body(ctx: hpcomm.Context) -> tuple[Bytes, int, int, model.Load]:
        params = {"w": np.zeros((256, 64), F32)}
        with Exchange(ctx, params, topology, codec=OneBit(), progress="inline", chunk_bytes=16384) as ex:
            ex.push_pull("w", np.ones((256, 64), F32))
            ctx.barrier()
            stats = ex.stats()
            one = stats.codecs["w"]
            sent = {(entry.stage, ctx.rank, entry.rank): entry.bytes for entry in stats.traffic}
            return Counter(sent), one.bytes, one.bytes_before, model.load_of(ex.plan)

    every = run_threads(RANKS, body, transport="tcp")
    counted: Bytes = sum((sent for sent, *_ in every), Counter())
    ratio = sum(nbytes for _, nbytes, *_ in every) / sum(before for _, _, before, _ in every)
    load = every[0][3]
    assert ratio < 0.2
    for stages in (UPDATES, PARAMETERS):
        out, into = (side[0] for side in load.by_rank(stages, [CodecRates(ratio, 0, 0)]))
        for rank in range(RANKS):
            ways = [sum(n for way, n in counted.items() if way[0] in stages and way[end] == rank) for end in (1, 2)]
            assert [out[rank], into[rank]] == pytest.approx(ways)


def test_ranks_and_hosts_send_what_their_entries_say() -> None:
    plan = Plan.hosts(SHAPES, [TWO_HOSTS], RANKS, chunk_bytes=1024, codec={"w": TopK(0.1)})
    load = model.load_of(plan, [7, 7, 3, 3])
    assert load.hosts.tolist() == [0, 0, 2, 2]
    sent = list(zip(load.sent.key, load.sent.stage, load.sent.source, load.sent.target, load.sent.nbytes, strict=True))
    for stages in (UPDATES, PARAMETERS, ("relay",)):
        numbers = [model.STAGES.index(stage) for stage in stages]
        for key in range(2):
            for rank in range(RANKS):
                out = sum(n for k, stage, a, _, n in sent if (k, a) == (key, rank) and stage in numbers)
                into = sum(n for k, stage, _, b, n in sent if (k, b) == (key, rank) and stage in numbers)
                assert [side[key, rank] for side in load.by_rank(stages)] == [out, into]
        for host, other in ((0, 2), (2, 0)):
            far = [n for _, stage, a, b, n in sent if a // 2 * 2 == host and b // 2 * 2 == other and stage in numbers]
            assert load.by_host(stages)[0][:, host].sum() == load.by_host(stages)[1][:, other].sum() == sum(far)
        assert not load.by_host(stages)[0][:, [1, 3]].any()
    tenth = load.by_host(UPDATES, [CodecRates(0.1, 0, 0)] * 2)[0]
    np.testing.assert_allclose(tenth, load.by_host(UPDATES)[0] * [[0.1], [1]])  # b goes as arrays


@pytest.mark.parametrize(
    "plan",
    [
        Plan.tree({"w": 1 << 16}, [-1, 0, 1, 1]),
        Plan.hosts({"w": 1 << 16}, [TWO_HOSTS], RANKS),
        Plan.hosts({"w": 1 << 16}, [[[0, 1], [2], [3]]], RANKS, top="ring", apply_at="receivers"),
        Plan.hosts({"w": 1 << 16}, [TWO_HOSTS], RANKS, codec="float16", codec_out="bfloat16"),
    ],
    ids=["tree", "hosts", "ring", "16 bits"],
)
def test_the_text_of_a_plan_tells_the_same_bytes(plan: Plan) -> None:
    sent = predicted(model.load_of(plan))
    lines = re.findall(r"ranks? (\d)(?:-(\d))?: ([\d.]+) (K?i?B) out, ([\d.]+) (K?i?B) in", str(plan))
    assert lines
    for first, last, *told in lines:
        group = range(int(first), int(last or first) + 1)
        out = sum(n for (_, a, b), n in sent.items() if a in group and b not in group)
        into = sum(n for (_, a, b), n in sent.items() if b in group and a not in group)
        unit = {"B": 1, "KiB": 1024}
        assert [float(told[0]) * unit[told[1]], float(told[2]) * unit[told[3]]] == [out, into]


# ---- memory, as exchanges allocate it --------------------------------------------------------------------------------

LARGE = {"w": 1 << 18, "b": 70}


def mapped_bytes(ex: Exchange) -> int:
    """Of this rank's part of the exchange's window, as the kernel has mapped it here."""
    memory = lib.hpc_exchange_memory(ex._handle, 0, ffi.NULL)
    at = int(ffi.cast("uintptr_t", lib.hpc_memory_data(memory)))
    lib.hpc_memory_release(memory)
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= at < high:
            return high - at
    raise AssertionError("the window is not mapped")


@on_both
@pytest.mark.parametrize("case", CASES)
def test_memory_is_what_an_exchange_allocates(case: str) -> None:
    """The counters and signals of a rank, and the ends of its pages: at most 16 pages for so few keys and ranks."""
    topology, options = CASES[case]

    def body(ctx: hpcomm.Context) -> int:
        params = {name: np.zeros(count, F32) for name, count in LARGE.items()}
        with Exchange(ctx, params, topology, progress="inline", **grouped(options)) as ex:
            memory = model.memory_of(ex.plan, hosts_of(ctx), takes_turns=bool(ex.graph))
            more = mapped_bytes(ex) - int(memory.window[ctx.rank])
            if not ex.params:
                ex.serve()
            return more

    more = run_threads(RANKS, body)
    assert 0 <= min(more) <= max(more) <= 16 * 4096


def test_state_and_residuals() -> None:
    keys = {"w": (64, 100), "b": (70,)}
    hub = Plan.hub(keys, range(4), [1, 2], 4, codec={"w": OneBit()})
    memory = model.memory_of(hub, state=[2, 1])  # Adam for w, Momentum for b
    assert memory.state.sum() == 4 * (2 * 6400 + 70)
    assert memory.state[[0, 3]].sum() == 0
    assert memory.residuals.tolist() == [4 * 6400] * 4
    receivers = Plan.hub(keys, range(4), [1, 2], 4, apply_at="receivers")
    assert model.memory_of(receivers, state=[2, 1]).state.tolist() == [4 * (2 * 6400 + 70)] * 4
    assert (memory.total == memory.window + memory.state + memory.residuals).all()
    chain = Plan.tree(keys, [-1, 0, 1])  # rank 1 relays, and applies nothing
    assert model.memory_of(chain, state=[2, 1]).state.tolist() == [4 * (2 * 6400 + 70), 0, 0]


@pytest.mark.parametrize(
    ("pushers", "readers", "apart"), [((0, 1), (0, 1), 0), ((1,), (0, 1), 256), ((0, 1), (1,), 256)]
)
def test_a_master_lies_apart_unless_its_owner_pushes_and_reads(
    pushers: tuple[int, ...], readers: tuple[int, ...], apart: int
) -> None:
    row = Row(0, 0, 0, 0, 64, tuple(map(Edge, pushers)), tuple(map(Edge, readers)))
    memory = model.memory_of(Plan([Key("w", (64,))], [row], 2))
    assert memory.masters.tolist() == [apart, 0]


# ---- seconds ---------------------------------------------------------------------------------------------------------


def test_seconds_of_a_hub_by_hand() -> None:
    """Rank 0 serves two ranks of its host and two of another one: 1000 elements."""
    plan = Plan.hub({"w": 1000}, range(4), [0], 4)
    load = model.load_of(plan, [0, 0, 2, 2])
    link = 8000 / 1e6  # two updates one way, and two copies of the parameters the other way
    assert model.step_seconds(load, Rates(between=1e6)) == pytest.approx(link)
    assert model.step_seconds(load, Rates(between=1e6, latency=3)) == pytest.approx(3 + link)
    assert model.step_seconds(load, Rates(between=1e6, fold=1e-3)) == pytest.approx(link + 4)
    assert model.step_seconds(load, Rates(between=1e6, memory=1e3)) == pytest.approx(link + 4)
    assert model.step_seconds(load, Rates(between=1e6, inside=1e3)) == pytest.approx(link + 4)  # to rank 1
    rates = Rates(between=1e6, inside=1e3, memory=1e3, fold=1e-3)
    assert model.work_seconds(load, rates)[0].tolist() == pytest.approx([12, 4, 4, 4])
    pieces = model.load_of(Plan.hub({"w": 1000}, range(4), [0], 4, codec=TopK(0.1)), [0, 0, 2, 2])
    codec = [CodecRates(0.25, 1e-3, 2e-3)]
    assert model.work_seconds(pieces, Rates(between=1e6), codec)[0].tolist() == pytest.approx([9, 1, 1, 1])
    assert model.update_seconds(pieces, 1e6).tolist() == pytest.approx([link])
    assert model.update_seconds(pieces, 1e6, codec).tolist() == pytest.approx([link / 4 + 1 + 8])
    assert model.step_seconds(pieces, Rates(between=1e6), codec) == pytest.approx(link + 9)  # parameters stay float32


def test_what_goes_to_several_rows_is_encoded_and_copied_once() -> None:
    graph = complete(4)
    weights = graph.dense()[None]
    arrays, pieces = (model.load_of(Plan.graph({"w": 1000}, weights, codec=codec)) for codec in (None, TopK(0.1)))
    assert (arrays.copies.tolist(), pieces.copies.tolist()) == ([[4000] * 4], [[0] * 4])
    assert (arrays.encodes.tolist(), pieces.encodes.tolist()) == ([[0] * 4], [[1000] * 4])
    assert (arrays.decodes.tolist(), pieces.decodes.tolist()) == ([[0] * 4], [[4000] * 4])
    assert model.update_seconds(pieces, 1e6, [CodecRates(0.5, 1, 2)]) == pytest.approx(0.006 + 1000 + 8000)


def test_relays_fold_nothing() -> None:
    load = model.load_of(Plan.tree({"w": 1000}, [-1, 0, 1, 1]))
    assert load.folds.tolist() == [[1000, 0, 0, 0]]
    assert load.by_rank(PARAMETERS)[0].tolist() == [[4000, 8000, 0, 0]]


def test_what_a_codec_has_saved() -> None:
    assert model.saved_seconds(4_000_000, 1_000_000, 0.5, 1e6) == 2.5


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Rates(between=0), "rates: between is 0: must be a number above 0, in bytes a second"),
        (lambda: Rates(between=1, memory=float("nan")), "rates: memory is nan"),
        (lambda: Rates(between=1, fold=-1e-9), "rates: fold is -1e-09: must be a finite number, 0 or more, in seconds"),
        (lambda: Rates(between=True), "rates: between is True"),
        (lambda: model.load_of(Plan.hub({"w": 9}, [0, 1], [0], 2), [0]), r"hosts has shape \(1,\): must be \(2,\)"),
        (lambda: model.load_of(Plan.hub({"w": 9}, [0], [0], 1), None, [1]), r"weights has shape \(1,\)"),
        (lambda: model.memory_of(Plan.hub({"w": 9}, [0, 1], [0], 2), [[0, 1]]), r"hosts has shape \(1, 2\)"),
    ],
)
def test_refusals(make: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        make()


# ---- clusters that nobody has ----------------------------------------------------------------------------------------


def test_hosts_first_on_64_ranks() -> None:
    """Eight hosts of eight ranks: a host's link carries an update once, where it carries eight of them by a hub."""
    ranks, hosts = 64, [rank // 8 for rank in range(64)]
    keys = {"w": 64 * 8192}
    groups = [list(range(8 * host, 8 * host + 8)) for host in range(8)]
    nbytes = 4 * keys["w"]
    hub = model.load_of(Plan.hub(keys, range(ranks), range(ranks), ranks), hosts)
    first = model.load_of(Plan.hosts(keys, [groups], ranks, chunk_bytes=32768), hosts)
    for load, times in ((hub, 8), (first, 1)):
        for payload in (UPDATES, PARAMETERS):
            for side in load.by_host(payload):
                assert side[0, ::8].tolist() == [times * nbytes * 7 / 8] * 8
    rates = Rates(between=1.25e9)
    assert model.step_seconds(first, rates) == pytest.approx(2 * nbytes * 7 / 8 / 1.25e9)
    assert model.step_seconds(hub, rates) == pytest.approx(8 * model.step_seconds(first, rates))


@given(st.integers(1, 5), st.integers(2, 4), st.floats(0.1, 10), st.floats(0.1, 10))
def test_when_racks_pay_is_what_their_rows_say(hosts: int, racks: int, link: float, core: float) -> None:
    """PHub's terms (section 3.4) are the bytes that the rows send out of a rack, by its links' rates."""
    size = hosts * racks
    keys = {"w": size * 16}
    nbytes = 4 * keys["w"]
    alone, groups = [[rank] for rank in range(size)], np.arange(size).reshape(racks, hosts).tolist()
    rack_of = [rank // hosts for rank in range(size)]
    flat, racked = (
        model.load_of(Plan.hosts(keys, levels, size, chunk_bytes=64), rack_of) for levels in ([alone], [alone, groups])
    )
    crosses = [float(load.by_host(UPDATES)[0].max()) / nbytes for load in (flat, racked)]
    assert crosses == pytest.approx([hosts * (racks - 1) / racks, (racks - 1) / racks])
    without, first = crosses[0] / core, 1 / link + crosses[1] / min(hosts * link, core)
    assume(abs(without - first) > 1e-9)
    by_rows = without > first
    assert model.racks_pay(Bandwidths(link, core), hosts, racks) == by_rows


@pytest.mark.parametrize("make", [ring, root_expander, complete, hypercube, lambda n: random_regular(n, 3, seeds=2)])
def test_rows_of_a_graph_send_what_its_degrees_say(make: Any) -> None:
    graph = make(8)
    plan = Plan.graph({"w": 1000, "b": 10}, graph.dense()[None])
    out, into = model.load_of(plan).by_rank()
    assert out.sum(axis=0).tolist() == bytes_per_step(graph, 4040).tolist()
    assert into.sum(axis=0).tolist() == (graph.in_degrees * 4040).tolist()


def test_phases_send_what_each_has() -> None:
    phases = one_peer_exponential(8)
    weights = np.stack([phase.dense() for phase in phases])
    plan = Plan.graph({"w": 1000}, weights)
    every = [model.load_of(plan, weights=phase) for phase in weights]
    for load, phase in zip(every, phases, strict=True):
        pairs = set(zip(load.sent.source.tolist(), load.sent.target.tolist(), strict=True))
        assert pairs == {(a, b) for b in range(8) for a, _ in phase.in_edges(b) if a != b}
        assert load.folds.tolist() == [[2000] * 8]
    assert predicted(model.load_of(plan)) == predicted(every[0])


def test_a_thousand_ranks() -> None:
    """The rows say what recommend says by the degrees alone."""
    graph = root_expander(1000)
    load = model.load_of(Plan.graph({"w": 1 << 18}, graph.dense()[None]))
    rates = Rates(between=1.25e9, latency=1e-5)
    busiest = model.busiest_link(bytes_per_step(graph, 1 << 20), graph.in_degrees << 20)
    assert model.step_seconds(load, rates) == model.link_seconds(busiest, rates)


# ---- rates of a context ----------------------------------------------------------------------------------------------

TOP = Auto(TopK(0.01, kernel="c"))  # which needs no compiler


@on_both
def test_rates_are_measured_once_and_alike_on_all_ranks(ranks_by: str) -> None:
    def body(ctx: hpcomm.Context) -> Rates:
        first = hpcomm.measure_rates(ctx)
        assert hpcomm.measure_rates(ctx) is not first
        assert hpcomm.measure_rates(ctx) == first  # to the last bit
        return first

    found = run_threads(3, body)
    assert found == [found[0]] * 3
    one = found[0]
    assert (one.between < 1e13) == (ranks_by != "shm")
    assert (one.inside < 1e13) == (ranks_by == "shm")
    assert 1e6 < one.memory < 1e13
    assert 0 < one.fold < 1e-3


def test_all_measure_again_where_one_rank_has_failed_to() -> None:
    def body(ctx: hpcomm.Context) -> list[int]:
        made: list[int] = []

        def measured() -> int:
            made.append(len(made))
            if ctx.rank == 1 and len(made) == 1:
                raise HpcommError("no luck")
            return 10 * ctx.rank + len(made)

        if ctx.rank == 1:
            with pytest.raises(HpcommError, match="no luck"):
                measure.once(ctx, "luck", measured, None)
        else:
            assert measure.once(ctx, "luck", measured, None) == 10 * ctx.rank + 1
        assert measure.once(ctx, "luck", measured, None) == 10 * ctx.rank + 2
        assert measure.once(ctx, "luck", measured, None) == 10 * ctx.rank + 2
        return made

    assert run_threads(3, body) == [[0, 1]] * 3


def test_exchanges_of_a_context_measure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank measures the link once and each codec once, however many exchanges ask for them."""
    calls: Counter[tuple[str, int]] = Counter()
    lock, carried, tried = threading.Lock(), measure.carried, measure._tried

    def count_carried(ctx: hpcomm.Context, *args: Any) -> float:
        with lock:
            calls["carried", ctx.rank] += 1
        return carried(ctx, *args)

    def count_tried(ctx: hpcomm.Context, codec: Any, *args: Any) -> CodecRates:
        with lock:
            calls[codec.name, ctx.rank] += 1
        return tried(ctx, codec, *args)

    monkeypatch.setattr(measure, "carried", count_carried)
    monkeypatch.setattr(measure, "_tried", count_tried)

    def body(ctx: hpcomm.Context) -> list[str]:
        why = []
        for codec in (TOP, TOP, {"w": Auto(OneBit())}, {"w": TOP}):
            with Exchange(ctx, {"w": np.zeros(5000, F32)}, codec=codec, progress="inline") as ex:
                why.append(ex.stats().codecs["w"].why)
        return why

    every = run_threads(2, body, transport="tcp")
    assert calls == {(what, rank): 1 for what in ("carried", "topk", "onebit") for rank in range(2)}
    assert every[0] == every[1]
    assert every[0][0] == every[0][1] == every[0][3] != every[0][2]


@pytest.mark.parametrize(("between", "pays"), [(1e3, True), (1e15, False)])
def test_a_codec_is_taken_where_its_seconds_are_fewer(between: float, pays: bool) -> None:
    rates = CodecRates(0.1, 1e-9, 1e-9)

    def body(ctx: hpcomm.Context) -> None:
        measure.once(ctx, "between", lambda: between, None)
        measure.once(ctx, ("codec", TOP.codec), lambda: rates, None)
        with Exchange(ctx, {"w": np.zeros(5000, F32)}, codec=TOP, progress="inline") as ex:
            ex.push_pull("w", np.ones(5000, F32))
            assert ex.codecs["w"] == (TOP.codec if pays else FLOAT32)
            one = ex.stats().codecs["w"]
            if one.gain is not None:
                working = one.encode + one.decode
                assert one.gain == model.saved_seconds(one.bytes_before, one.bytes, working, between)
            assert (one.gain is not None) == pays

    run_threads(2, body, transport="tcp")


@pytest.mark.parametrize(
    "options",
    [
        {"chunk_bytes": 7},
        {"progress": "fast"},
        {"rule": 3},
        {"codec": "gzip"},
        {"topology": ring(3), "codec": "float16"},
    ],
    ids=["chunk", "progress", "rule", "codec", "topology"],
)
@pytest.mark.parametrize("ranks_by", ["shm", "tcp"])
def test_a_later_exchange_is_refused_on_all_ranks(ranks_by: str, options: dict[str, Any]) -> None:
    """Also where the rank that refuses does not know that the others measure codecs."""

    def body(ctx: hpcomm.Context) -> None:
        given = {"w": np.zeros(5000, F32)}
        with Exchange(ctx, given, codec=TOP, progress="inline") as ex:
            ex.push_pull("w", np.ones(5000, F32))
        mine: dict[str, Any] = {"progress": "inline", "codec": TOP, **(options if ctx.rank == 1 else {})}
        with pytest.raises(InvalidArgument, match=next(iter(options)).partition("_")[0]):
            hpcomm.parameter_hub(ctx, given, **grouped(mine))
        with Exchange(ctx, given, codec=TOP, progress="inline") as ex:  # the ranks still agree on what comes next
            ex.push_pull("w", np.ones(5000, F32))

    run_threads(3, body, transport=ranks_by)
