"""Parameter Flow as a whole: the preset, thresholds that are changed, trees that are chosen, and theorem 2."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_threads
from numpy.typing import NDArray

import hpcomm
from hpcomm import SGD, SSP, Exchange, Hierarchy, ParameterServer, Tree
from hpcomm.codec import Threshold, TopK
from hpcomm.topology import Request, trees_for
from hpcomm.topology.automatic import Automatic
from hpcomm.topology.protocol import Job

F32 = np.float32


# ---- thresholds ----------------------------------------------------------------------------------------------------


def kept_back(ex: Exchange, value: float, steps: int = 1) -> float:
    """What pushes of value in every element have changed."""
    before = ex.params["w"].copy()
    for _ in range(steps):
        ex.push_pull("w", np.full(before.size, value, F32))
    changed = before - ex.params["w"]
    assert (changed == changed[0]).all()
    return float(changed[0])


def test_a_threshold_may_change_and_nothing_is_lost() -> None:
    """Each rank's own, of what it pushes and of what it forwards."""

    def body(ctx: hpcomm.Context) -> None:
        codec = Threshold(5.0, decays=False)
        topology = ParameterServer("CS", [0], apply_at="receivers", tree=Tree(arity=1))
        options: Any = {"codec": codec, "rule": SGD(lr=1.0), "reduce": "sum"}
        with Exchange(ctx, {"w": np.zeros(1000, F32)}, topology, **options) as ex:
            assert kept_back(ex, 3.0) == 0
            if ctx.rank == 1:
                ex.set_codec(delta=1.0, of="pushes")
            assert kept_back(ex, 0.0) == 0  # 3 of rank 1 have come to the owner, who keeps them back
            if ctx.rank == 0:
                ex.set_codec(delta=2.0, of="folds")
            assert kept_back(ex, 0.0) == 3
            ex.set_codec(delta=0.0, keys="w")
            assert kept_back(ex, 0.0) == 6  # those of the other two
            counts = ex.stats().codecs["w"]
            assert (counts.delta_of_pushes, counts.delta_of_folds) == (0.0, 0.0 if ctx.rank == 0 else None)

    run_threads(3, body)


@pytest.mark.parametrize(
    ("codec", "change", "sentence"),
    [
        (Threshold(1.0), {"delta": -1.0}, "delta is -1.0: must be a finite number, 0 or more"),
        (Threshold(1.0), {"delta": 1.0, "of": "all"}, "of is 'all': must be 'pushes', 'folds' or None"),
        (Threshold(1.0), {"delta": 1.0, "keys": "v"}, "'v' is not a key of this exchange"),
        (TopK(0.5), {"delta": 1.0}, "no key goes by a threshold"),
        (TopK(0.5), {"delta": 1.0, "keys": "w"}, "key w of rank 0 goes as topk, which has no delta"),
        (Threshold(1.0, up=2.0, at_least=1e6), {"delta": 1.0}, "the delta of key w follows the network, between 1 and"),
    ],
)
def test_a_threshold_that_cannot_be(codec: Any, change: dict[str, Any], sentence: str) -> None:
    def body(ctx: hpcomm.Context) -> None:
        with (
            Exchange(ctx, {"w": np.zeros(9, F32)}, codec=codec) as ex,
            pytest.raises(hpcomm.InvalidArgument, match=sentence),
        ):
            ex.set_codec(**change)

    run_threads(1, body)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"up": 2.0}, "up is 2.0 and at_least None: give both"),
        ({"at_least": 2.0}, "up is None and at_least 2.0: give both"),
        ({"up": 0.5, "at_least": 1e6}, "up is 0.5, below delta, which is 1.0"),
        ({"up": 2.0, "at_least": 0}, "at_least is 0: must be"),
        ({"up": 2.0, "at_least": 1e6, "follow": "me"}, "follow is 'me': must be one of 'probes', 'smooth'"),
    ],
)
def test_a_network_that_cannot_be_followed(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match=sentence):
        Threshold(1.0, **wrong)


@pytest.mark.parametrize(("name", "other"), [("up", 3.0), ("at_least", 2e6), ("follow", "smooth")])
def test_ranks_follow_alike(name: str, other: Any) -> None:
    def body(ctx: hpcomm.Context) -> None:
        options: Any = {"up": 2.0, "at_least": 1e6} | ({name: other} if ctx.rank == 1 else {})
        with pytest.raises(hpcomm.ConfigError, match=f"has {name} .* on rank 1 and .* on rank 0"):
            hpcomm.parameter_flow(ctx, {"w": np.zeros(9, F32)}, delta=1.0, **options)

    run_threads(2, body)


def test_an_exchange_follows_one_network() -> None:
    def body(ctx: hpcomm.Context) -> None:
        codecs = {name: Threshold(1.0, up=2.0, at_least=at_least) for name, at_least in (("v", 1e6), ("w", 2e6))}
        with pytest.raises(
            hpcomm.ConfigError, match=r"key w follows 2000000 bytes a second .* an exchange follows one"
        ):
            Exchange(ctx, {"v": np.zeros(9, F32), "w": np.zeros(9, F32)}, codec=codecs)

    run_threads(2, body)


def test_on_one_host_nothing_is_probed() -> None:
    def body(ctx: hpcomm.Context) -> None:
        for follow in ("probes", "smooth"):
            with hpcomm.parameter_flow(
                ctx, {"w": np.zeros(99, F32)}, delta=1.0, up=2.0, at_least=1e6, follow=follow, reduce="sum"
            ) as ex:
                assert kept_back(ex, 3.0, 3) == 18
                assert ex.stats().codecs["w"].delta_of_pushes == 1.0

    run_threads(2, body)


def test_slots_that_do_not_fit_into_memory_are_refused_on_every_rank() -> None:
    """No rank alone asks for more than there is: only all of the host do."""
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(told["MemAvailable"].split()[0]) * 1024
    n = available // 8 // (2 * 32 * 4)  # of 2 x 32 slots each of 8 ranks would take all of it, and it has more

    def body(ctx: hpcomm.Context) -> None:
        with pytest.raises(hpcomm.OutOfMemory, match=r"with 32 slots for each update, and .* are available there"):
            hpcomm.parameter_flow(ctx, {"w": np.zeros(n, F32)}, delta=1.0, consistency=SSP(30), tree=None)

    run_threads(8, body)


# ---- the preset ----------------------------------------------------------------------------------------------------


def test_the_preset_is_ucc_dvf_and_tsb() -> None:
    def body(ctx: hpcomm.Context) -> None:
        params = {"w": np.zeros(4096, F32)}
        with hpcomm.parameter_flow(ctx, params, delta=0.5, servers=1, tree=Tree(arity=1)) as ex:
            topology = ParameterServer("CS", 1, apply_at="receivers", tree=Tree(arity=1))
            cores = max(core for _, core in ex.plan.places) + 1
            assert ex.plan == topology.compile(Request(params, 4, cores=cores, codec=Threshold(0.5)))
            assert ex.codecs["w"] == Threshold(0.5)
            assert kept_back(ex, 1.0) == 1.0
        with hpcomm.parameter_flow(ctx, params, delta=0.5, consistency=SSP(2), form="paper") as ex:
            assert kept_back(ex, 1.0) >= 0

    run_threads(4, body)


def chosen(hosts: list[int], servers: Any) -> Any:
    """The trees of "auto", by owner, for ranks of these hosts."""
    size = len(hosts)
    job = Job(size, hosts, [""] * size, trees=lambda owners: trees_for(owners, size, hosts=hosts))
    return ParameterServer("CS", servers, apply_at="receivers", tree="auto").resolved(job).tree


def test_trees_are_taken_where_they_pay() -> None:
    """One or two owners of eight hosts: no rank sends a fold more often than twice, in all trees together. Where all
    own, or all are on one host, there is no tree."""
    alone = list(range(8))
    assert chosen(alone, None) is None
    assert chosen([0] * 8, 1) is None
    for owners in ([3], [0, 1]):
        trees = dict(chosen(alone, owners))
        assert sorted(trees) == owners
        assert max(sum(tree.turned(owner, 8).count(rank) for owner, tree in trees.items()) for rank in alone) <= 2


def test_hosts_of_several_ranks_send_one_update_under_plain_bsp() -> None:
    def found(hosts: list[int], consistency: hpcomm.Consistency = hpcomm.BSP) -> Any:
        return Automatic(apply_at="receivers").resolved(Job(len(hosts), hosts, [""] * len(hosts), consistency))

    assert found([0, 0, 2, 2]) == Hierarchy([[0, 1], [2, 3]], (), apply_at="receivers")
    flat = ParameterServer(apply_at="receivers")
    assert found([0, 1, 2, 3]) == found([0, 0, 2, 2], SSP(2)) == found([0, 0, 0, 0]) == flat
    quorum = Job(2, [0, 1], ["", ""], hpcomm.Consistency(quorum=1))
    assert Automatic(apply_at="receivers").refuses(quorum) == flat.refuses(quorum) is not None


# ---- theorem 2 -----------------------------------------------------------------------------------------------------


def run_ssp(
    T: int, s: int, delta: float, eta: float, n: int, d: int
) -> tuple[Callable[[int, int, NDArray[Any]], tuple[float, NDArray[Any]]], list[Any]]:
    """SGD on |x w - y| over T steps of n workers under SSP(s), over a chain. Returns the losses, and of each worker the
    parameters that it had at each step, and its updates."""
    rng = np.random.default_rng(0)
    target = rng.standard_normal(d)
    x = rng.standard_normal((n, T, d)) / math.sqrt(d)
    y = x @ target

    def loss(worker: int, step: int, w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        error = float(x[worker, step] @ w - y[worker, step])
        return abs(error), np.sign(error) * x[worker, step]

    def body(ctx: hpcomm.Context) -> Any:
        seen, updates = [], []
        with hpcomm.parameter_flow(
            ctx, {"w": np.zeros(d, F32)}, delta=delta, tree=Tree(arity=1), consistency=SSP(s), reduce="sum"
        ) as ex:
            for t in range(T):
                w = ex.params["w"].astype(np.float64)
                update = (eta / math.sqrt(t + 1) * loss(ctx.rank, t, w)[1]).astype(F32)
                seen.append(w)
                updates.append(update)
                ex.push_pull("w", update)
        return seen, updates

    return loss, run_threads(n, body)


def test_theorem_2_bounds_the_regret() -> None:
    """Theorem 2 and lemma 2, for f_t the sum of the workers' losses of step t, whose gradients are at most L long."""
    T, s, delta, eta, n, d = 400, 3, 2e-3, 0.5, 4, 32
    loss, found = run_ssp(T, s, delta, eta, n, d)
    rng = np.random.default_rng(0)
    best = rng.standard_normal(d)  # all losses are 0 there
    norms = [[float(np.linalg.norm(loss(i, t, np.full(d, 99.0))[1])) for t in range(T)] for i in range(n)]
    L = float(np.max(np.sum(norms, axis=0)))
    regret = sum(loss(i, t, found[i][0][t])[0] - loss(i, t, best)[0] for t in range(T) for i in range(n))
    F2 = max(0.5 * float(np.sum((w - best) ** 2)) for seen, _ in found for w in seen)
    bound = (
        eta * L**2 * math.sqrt(T)
        + F2 * math.sqrt(T) / eta
        + 2 * delta * (n + 1) * L * math.sqrt(d * T)
        + 2 * eta * n * s * L**2 * math.sqrt(T)
    )
    assert 0 < regret <= bound
    assert regret < sum(loss(i, t, found[i][0][0])[0] for t in range(T) for i in range(n)) / 4  # it has learned
    made = np.cumsum([np.sum([found[i][1][t].astype(np.float64) for i in range(n)], axis=0) for t in range(T)], axis=0)
    for seen, _ in found:
        for t in range(1, T):
            apart = np.linalg.norm(seen[t] + made[t - 1])
            before = max(t - s, 1)  # an update that is missing, or held back, may be so old
            assert apart <= (n + 1) * delta / math.sqrt(before) * math.sqrt(d) + n * s * eta / math.sqrt(before) * L
