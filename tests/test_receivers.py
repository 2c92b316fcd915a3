"""Rules that receivers apply: apply_at="receivers" and "both"."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from flat import grouped
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import hpcomm
from hpcomm import SGD, SSP, Adam, Consistency, Exchange, Hierarchy, Momentum, ParameterServer, Tree, kernels
from hpcomm.codec import Threshold, TopK
from hpcomm.graphs import ring
from hpcomm.topology import Request
from hpcomm.topology.by_key import ByKey
from hpcomm.topology.given import as_topology

F32 = np.float32
SHAPES = {"conv": (37, 29), "bias": (), "fc": (211, 33)}
RULES: dict[str, Any] = {"sgd": SGD(lr=0.1), "momentum": Momentum(lr=0.1, momentum=0.9), "adam": Adam(lr=0.01)}
STEPS = 4

HOSTS, RACKS = [[0, 1], [2, 3], [4]], [[0, 1, 2, 3], [4]]
TOPOLOGIES: dict[str, Any] = {
    "hub": ParameterServer(),
    "few servers": ParameterServer("CS", [1, 3]),
    "apart": ParameterServer("NCS", [0, 3]),
    "hosts": Hierarchy(HOSTS),
    "racks": Hierarchy(HOSTS, RACKS, leaders=[1, 2, 4]),
    "ring": Hierarchy(HOSTS, (), top="ring"),
}
TREES: dict[str, Any] = {
    "none": None,
    "chain": Tree(arity=1),
    "binary": Tree(),
    "given": Tree(parents=[1, -1, 0, 1, 3]),
    "of one": {3: Tree(arity=1, root=2)},
}


def received(name: str, apply_at: str, tree: str = "none") -> Any:
    """A topology whose receivers apply; over a tree, if it may have one."""
    one = TOPOLOGIES[name]
    if isinstance(one, ParameterServer):
        return replace(one, apply_at=apply_at, tree=TREES[tree])
    return replace(one, apply_at=apply_at)


def params() -> dict[str, NDArray[np.float32]]:
    return {name: np.full(shape, i, F32) for i, (name, shape) in enumerate(SHAPES.items())}


def step_of(ex: Exchange, seed: int, step: int) -> None:
    """With numbers whose sums depend on their order."""
    rng = np.random.default_rng([seed, ex.context.rank, step])
    handles = [ex.push_pull_nb(name, rng.standard_normal(shape).astype(F32)) for name, shape in SHAPES.items()]
    for handle in handles:
        handle.wait()


def trained(ctx: hpcomm.Context, topology: Any, rule: Any, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """The parameters and the state of this rank's rows, by their places."""
    with Exchange(ctx, params(), topology, rule=rule, chunk_bytes=1024, progress="inline", **grouped(options)) as ex:
        if not ex.params:
            ex.serve()
        for step in range(STEPS) if ex.params else ():
            step_of(ex, seed, step)
        return {name: value.tobytes() for name, value in ex.params.items()}, rows_of(ex)


def rows_of(ex: Exchange) -> dict[tuple[str, int], tuple[int, bytes, bytes]]:
    shard, found, at, state_at = ex.state_dict(), {}, 0, 0
    columns = (shard[name].tolist() for name in ("row_key", "row_offset", "row_count", "row_step"))
    for key, offset, n, step in zip(*columns, strict=True):
        slots = int(shard["slots"][key])
        state = shard["state"][state_at : state_at + slots * n]
        found[str(shard["keys"][key]), offset] = step, shard["params"][at : at + n].tobytes(), state.tobytes()
        at, state_at = at + n, state_at + slots * n
    return found


@pytest.mark.some(1)
@on_both
@settings(max_examples=10)
@given(
    name=st.sampled_from(sorted(TOPOLOGIES)),
    rule=st.sampled_from(sorted(RULES)),
    apply_at=st.sampled_from(["receivers", "both"]),
    tree=st.sampled_from(sorted(TREES)),
    cores=st.integers(1, 3),
    seed=st.integers(0, 1 << 30),
)
def test_receivers_have_the_bits_that_owners_would_have(
    name: str, rule: str, apply_at: str, tree: str, cores: int, seed: int
) -> None:
    topology = TOPOLOGIES[name]

    def body(ctx: hpcomm.Context) -> Any:
        return tuple(
            trained(ctx, each, RULES[rule], seed, cores=cores) for each in (topology, received(name, apply_at, tree))
        )

    every = run_threads(5, body)
    whole = {place: row for (_, rows), _ in every for place, row in rows.items()}
    for (expected, _), (found, copies) in every:
        assert expected == found
        assert all(whole[place] == row for place, row in copies.items())  # parameters, state and steps
    keeping = [len(copies) for _, (_, copies) in every if copies]
    assert sum(keeping) > len(whole)
    if isinstance(topology, ParameterServer) and topology.placement == "CS":
        assert keeping == [len(whole)] * 5
    if name == "apart":
        assert len(keeping) == (5 if apply_at == "both" else 3)


@on_both
def test_hosts_keep_one_copy_each() -> None:
    def body(ctx: hpcomm.Context) -> int:
        return len(trained(ctx, Hierarchy([[0, 1, 2], [3, 4]], apply_at="receivers"), SGD(lr=0.1))[1])

    rows = run_threads(5, body)
    chunks = len(Hierarchy([[0, 1, 2], [3, 4]]).compile(Request(params(), 5, chunk_bytes=1024)).rows_of("fc"))
    assert sum(rows[:3]) == sum(rows[3:]) > chunks / 3


@on_both
@pytest.mark.parametrize("codecs", [{"codec": "float16"}, {"codec_out": "bfloat16"}, {"codec": {"fc": "bfloat16"}}])
def test_all_workers_have_the_same_bits_in_16_bits(codecs: dict[str, Any]) -> None:
    def body(ctx: hpcomm.Context) -> list[Any]:
        return [
            trained(ctx, topology, RULES["momentum"], **codecs)[0]
            for topology in (ParameterServer(apply_at="receivers"), Hierarchy(HOSTS, RACKS, apply_at="receivers"))
        ]

    every = run_threads(5, body)
    assert all(found == every[0] for found in every)


@on_both
def test_the_update_travels_and_not_the_parameters() -> None:
    def body(ctx: hpcomm.Context) -> hpcomm.stats.ExchangeStats:
        topology = Hierarchy([[0, 1], [2, 3]], leaders=[0, 2], apply_at="receivers")
        with Exchange(ctx, {"w": np.zeros(4096, F32)}, topology, progress="inline", codec="float16") as ex:
            ex.push_pull("w", np.ones(4096, F32))
            ctx.barrier()
            return ex.stats()

    stats = run_threads(4, body)
    one, other = stats[0].traffic, stats[2].traffic
    assert {(entry.stage, entry.rank): entry.bytes for entry in (*one, *other)} == {
        ("forward", 2): 8192,  # half is folded by 0 and goes to 2, the other half comes from 2 as its host's fold
        ("parameters", 1): 16384,
        ("forward", 0): 8192,
        ("parameters", 3): 16384,
    }


@on_both
@pytest.mark.parametrize("name", ["hub", "few servers", "racks"])
def test_a_state_comes_back_into_all_copies(name: str) -> None:
    topology = replace(TOPOLOGIES[name], apply_at="both")

    def body(ctx: hpcomm.Context) -> None:
        with Exchange(ctx, params(), topology, rule=RULES["adam"], chunk_bytes=1024, progress="inline") as ex:
            first = {key: value.copy() for key, value in ex.params.items()}
            before = ex.state_dict()
            ctx.barrier()
            step_of(ex, 1, 0)
            ex.load_state_dict(before)
            assert all(np.array_equal(value, ex.params[key]) for key, value in first.items())
            ctx.barrier()

    run_threads(5, body)


@on_both
@pytest.mark.parametrize(("name", "tree"), [("hub", "binary"), ("apart", "none"), ("hosts", "none")])
def test_a_checkpoint_goes_on_with_the_same_bits(name: str, tree: str, tmp_path: Path) -> None:
    """By the same plan from a rank's own file, and by owners' plans from all files."""
    topology = received(name, "both", tree)
    options: dict[str, Any] = {"rule": RULES["momentum"], "chunk_bytes": 1024, "progress": "inline"}

    def body(ctx: hpcomm.Context) -> None:
        whole, _ = trained(ctx, TOPOLOGIES[name], RULES["momentum"])
        with (
            Exchange(ctx, params(), topology, **grouped(options)) as ex,
            hpcomm.Checkpointer(ex, tmp_path, every=2) as ckpt,
        ):
            if not ex.params:
                ckpt.serve()
            for step in range(2) if ex.params else ():
                step_of(ex, 0, step)
                ckpt.after(step + 1)
        for again in (topology, TOPOLOGIES[name]):
            with Exchange(ctx, params(), again, **grouped(options)) as ex:
                found = hpcomm.restore(ex, tmp_path)
                assert found is not None
                assert found.step == 2
                if not ex.params:
                    ex.serve()
                for step in range(2, STEPS) if ex.params else ():
                    step_of(ex, 0, step)
                assert {key: value.tobytes() for key, value in ex.params.items()} == whole

    run_threads(5, body)


@on_both
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_recovery_takes_the_last_checkpoint(has_checkpoint: bool, tmp_path: Path) -> None:
    """Copies may differ by the step in which the rank died."""
    found = []

    def body(ctx: hpcomm.Context) -> None:
        topology = Hierarchy([[0, 1], [2, 3]], leaders=[0, 2], apply_at="receivers")
        ex = Exchange(ctx, params(), topology, rule=RULES["momentum"], chunk_bytes=1024, progress="inline")
        with hpcomm.Checkpointer(ex, tmp_path, every=1) as ckpt:
            step_of(ex, 0, 0)
            ckpt.after(1)
        saved = {key: value.tobytes() for key, value in ex.params.items()}
        if ctx.rank == 3:
            step_of(ex, 0, 1)  # ends when all have begun it, and so have ended the first
            ctx.abort("test")
            raise Left

        def go_on() -> None:
            for step in range(1, 100):
                step_of(ex, 0, step)

        with pytest.raises(hpcomm.PeerFailed):
            go_on()
        if not has_checkpoint:
            with pytest.raises(hpcomm.CheckpointError, match="rank 3 is gone, and copies of the parameters may differ"):
                hpcomm.recover(ex)
            raise Left
        recovered = hpcomm.recover(ex, checkpoint=tmp_path)
        fresh = recovered.exchange
        assert (recovered.clock, recovered.lost) == (1, (3,))
        assert fresh.plan == Hierarchy([[0, 1], [2]], leaders=[0, 2], apply_at="receivers").compile(
            Request(params(), 3, chunk_bytes=1024)
        )
        assert {key: value.tobytes() for key, value in fresh.params.items()} == saved
        step_of(fresh, 0, 1)
        found.append({key: value.tobytes() for key, value in fresh.params.items()})
        fresh.context.close()
        raise Left

    run_threads(4, body, timeout=10)
    assert len(found) == 3 * has_checkpoint
    assert all(each == found[0] for each in found)


@on_both
def test_each_rank_sends_a_fold_to_its_children_alone() -> None:
    """The traffic of one owner over a chain, a binary tree and none, in float16 pieces of 8192 bytes."""

    def body(ctx: hpcomm.Context) -> dict[str, list[int]]:
        found = {}
        for name in ("none", "chain", "binary"):
            topology = ParameterServer("CS", [1], apply_at="receivers", tree=TREES[name])
            with Exchange(ctx, {"w": np.zeros(4096, F32)}, topology, progress="inline", codec="float16") as ex:
                ex.push_pull("w", np.ones(4096, F32))
                ctx.barrier()
                sent = [each for each in ex.stats().traffic if each.stage == "forward" and each.rank != ctx.rank]
                assert all(each.bytes == 8192 for each in sent)
                found[name] = [each.rank for each in sent]
        return found

    every = run_threads(5, body)
    assert [each["none"] for each in every] == [[], [0, 2, 3, 4], [], [], []]
    assert [each["chain"] for each in every] == [[], [2], [3], [4], [0]]
    assert [each["binary"] for each in every] == [[], [2, 3], [0, 4], [], []]


@on_both
@pytest.mark.parametrize("tree", ["chain", "given"])
def test_bounded_staleness_over_a_tree_loses_nothing(tree: str) -> None:
    """Ranks make unequal numbers of steps, and some that pass on close first."""

    def body(ctx: hpcomm.Context) -> None:
        topology = ParameterServer(apply_at="receivers", tree=TREES[tree])
        steps = [9, 6, 12, 7, 8]
        with Exchange(
            ctx, params(), topology, SSP(3), SGD(lr=1.0), reduce="sum", codec=Threshold(2.0, kernel="c", decays=False)
        ) as ex:
            before = {name: value.copy() for name, value in ex.params.items()}
            for step in range(steps[ctx.rank]):
                for name, shape in SHAPES.items():
                    ex.push_pull(name, np.full(shape, ctx.rank + 3 + step, F32))
        total = sum(sum(range(rank + 3, rank + 3 + n)) for rank, n in enumerate(steps))
        for name, value in ex.params.items():
            assert (before[name] - value == total).all()

    run_threads(5, body)


def test_a_tree_is_turned_to_its_owner() -> None:
    given = Tree(parents=[1, -1, 0, 1, 3])
    assert given.turned(1, 5) == given.above(5)
    assert given.turned(4, 5) == (1, 3, 0, 4, -1)
    assert Tree(arity=1, root=2).turned(4, 5) == (4, 0, 1, 2, -1)
    for root in range(5):
        turned = given.turned(root, 5)
        assert {frozenset(edge) for edge in enumerate(turned) if -1 not in edge} == {
            frozenset(edge) for edge in enumerate(given.above(5)) if -1 not in edge
        }
    left = ParameterServer("CS", [1, 4], apply_at="receivers", tree={4: given}).among([0, 2, 4], 5)
    assert left == ParameterServer("CS", [2], apply_at="receivers", tree={2: Tree(parents=[-1, 0, 0])})
    with pytest.raises(hpcomm.InvalidArgument, match="only folded updates go down a tree"):
        ParameterServer(tree=Tree())
    with pytest.raises(hpcomm.InvalidArgument, match="tree is 'best': must be a Tree, a mapping"):
        ParameterServer(apply_at="receivers", tree="best")  # type: ignore[arg-type]
    with pytest.raises(hpcomm.InvalidArgument, match="tree has rank 0, which does not serve"):
        ParameterServer("CS", [1], apply_at="receivers", tree={0: Tree()}).compile(Request({"w": (9,)}, 3))
    with pytest.raises(hpcomm.InvalidArgument, match="parents has 2 ranks: this job has 3"):
        ParameterServer(apply_at="receivers", tree=Tree(parents=[-1, 0])).compile(Request({"w": (9,)}, 3))


def test_by_key_and_by_preset() -> None:
    def body(ctx: hpcomm.Context) -> None:
        topology = ByKey({"fc": Hierarchy([[0, 1], [2, 3]], apply_at="receivers")}, ParameterServer())
        flat, _ = trained(ctx, {"fc": Hierarchy([[0, 1], [2, 3]])}, RULES["adam"])
        found, _ = trained(ctx, topology, RULES["adam"])
        assert found == flat
        with hpcomm.parameter_hub(ctx, params(), apply_at="receivers") as ex:
            assert ex.plan == ParameterServer(apply_at="receivers").compile(
                Request(params(), 4, cores=max(core for _, core in ex.plan.places) + 1)
            )

    run_threads(4, body)


def test_a_plan_says_who_applies() -> None:
    plan = Hierarchy([[0, 1], [2, 3]], leaders=[0, 2], apply_at="receivers").compile(
        Request({"w": (512,)}, 4, chunk_bytes=1024)
    )
    text = str(plan)
    assert "2 chunks" in text.splitlines()[0]
    assert "receivers apply the rule: ranks 0, 2" in text.splitlines()[0]
    assert "ranks 0-1: 2.00 KiB out, 2.00 KiB in; led by rank 0" in text
    assert "receivers" not in str(Hierarchy([[0, 1], [2, 3]]).compile(Request({"w": (512,)}, 4)))
    assert hpcomm.Plan.from_json(plan.to_json()) == plan
    apart = ParameterServer("NCC", apply_at="both").compile(Request({"w": (512,)}, 3))
    assert hpcomm.Plan.from_json(apart.to_json()) == apart
    assert "receivers apply the rule: ranks 0, 1, 2" in str(apart)
    on_a_graph = as_topology(ring).compile(Request({"w": (512,)}, 3))  # several ranks apply, each a fold of its own
    assert "receivers" not in str(on_a_graph)


@on_both
@pytest.mark.parametrize("codec", ["float32", Threshold(0.0), TopK(1.0)], ids=str)
@pytest.mark.parametrize(("apply_at", "tree"), [("receivers", None), ("both", None), ("receivers", Tree(arity=1))])
def test_fold_and_apply_at_receivers(codec: Any, apply_at: Any, tree: Any) -> None:
    """Two calls a key: what is skipped leaves no trace, also not in what owners hold back; squares count each element
    once, and every worker gets the mean."""

    def body(ctx: hpcomm.Context) -> None:
        topology = ParameterServer(apply_at=apply_at, tree=tree)
        options: Any = {"rule": hpcomm.SGD(lr=0.5), "codec": codec, "reduce": "sum", "chunk_bytes": 256}
        with (
            Exchange(ctx, params(), topology, split=True, **grouped(options)) as ex,
            Exchange(ctx, params(), ParameterServer(), **grouped(options)) as plain,
        ):
            rng = np.random.default_rng(ctx.rank)
            for step in range(6):
                for name, value in params().items():
                    update = rng.integers(-4, 5, value.shape).astype(np.float32)
                    ex.split.fold(name, update)
                    if step % 3 == 2:
                        ex.split.skip(name)
                        continue
                    mean = ex.split.gather(name).copy()
                    assert ex.split.squares(name) == np.square(mean).sum()
                    before = plain.params[name].copy()
                    np.testing.assert_array_equal(plain.push_pull(name, update), before - np.float32(0.5) * mean)
                    np.testing.assert_array_equal(ex.split.apply(name), plain.params[name])

    run_threads(3, body)


def test_fold_and_apply_need_servers_that_train() -> None:
    def body(ctx: hpcomm.Context) -> None:
        with pytest.raises(hpcomm.ConfigError, match=r"its owner, rank 0, is no worker.*placement CC or CS"):
            Exchange(ctx, params(), ParameterServer("NCC", apply_at="receivers"), codec=TopK(0.5), split=True)

    run_threads(3, body)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"consistency": SSP(31)}, "staleness is 31; 0 to 30 are possible where receivers apply the rule"),
        ({"consistency": Consistency(quorum=1, late="drop")}, "apply_at='receivers' receivers .* without a quorum"),
        ({"shared_params": True}, "a copy has one writer, which sends to all workers of its host"),
    ],
)
def test_what_does_not_go_with_receivers_is_refused_on_every_rank(options: dict[str, Any], sentence: str) -> None:
    def body(ctx: hpcomm.Context) -> None:
        with pytest.raises(hpcomm.HpcommError, match=sentence):
            Exchange(ctx, params(), ParameterServer(apply_at="receivers"), **grouped(options))

    run_threads(2, body)


def test_a_rule_that_folds_is_refused() -> None:
    @kernels.fold
    def largest(acc: Any, update: Any, weight: float, args: Any) -> None:
        for i in range(acc.size):
            acc[i] = max(acc[i], update[i])

    @kernels.rule(fold=largest, name="largest")
    def rule(param: Any, acc: Any, count: int, state: Any, args: Any) -> int:
        param -= acc
        return 0

    def body(ctx: hpcomm.Context) -> None:
        for consistency in (hpcomm.BSP, hpcomm.SSP(2)):
            with pytest.raises(hpcomm.ConfigError, match="rule largest has a fold of its own, by which"):
                Exchange(ctx, params(), ParameterServer(apply_at="receivers"), consistency, rule)

    run_threads(2, body)


def test_an_unknown_place_is_refused() -> None:
    for make in (ParameterServer, Hierarchy):
        with pytest.raises(hpcomm.InvalidArgument, match="apply_at is 'all': must be one of 'owners', 'receivers'"):
            make(apply_at="all")
    with pytest.raises(hpcomm.InvalidArgument, match="apply_at is 'all'"):
        hpcomm.Plan.hub({"w": (4,)}, [0], [0], 1, apply_at="all")


def test_the_receiver_of_a_host_writes_its_shared_copy() -> None:
    """All ranks are on one host here, which has one receiver: the owner."""

    def body(ctx: hpcomm.Context) -> None:
        everyone = [list(range(ctx.size))]
        own, _ = trained(ctx, Hierarchy(everyone), RULES["adam"])
        found, rows = trained(ctx, Hierarchy(everyone, apply_at="receivers"), RULES["adam"], shared_params=True)
        assert found == own
        assert rows

    run_threads(3, body)
