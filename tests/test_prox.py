"""Rules with a prox: exchanges against NumPy, the same bits whatever the plan, and what is refused."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads, through_a_file
from flat import grouped

import hpcomm
from hpcomm import SGD, SSP, Dual, Exchange, Hierarchy, InvalidArgument, ParameterServer, Plan, ProxSGD, _core, optim
from hpcomm.prox import L1, L2, ElasticNet, L2Ball, OwnProx, Prox, Simplex

F32 = np.float32
SHAPE = (210, 37)  # rows that no chunk of a power of two fits
LONG = (3, 9001)  # rows longer than a block of the engine

Array = Any


def initial(shape: tuple[int, int]) -> Array:
    return np.random.default_rng(1).integers(-8, 9, shape).astype(F32)


def update(step: int, rank: int, shape: tuple[int, int]) -> Array:
    return np.random.default_rng([step, rank]).integers(-8, 9, shape).astype(F32)


# ---- in NumPy --------------------------------------------------------------------------------------------------------


def soft(x: Array, t: float) -> Array:
    return x - np.clip(x, -F32(t), F32(t))


def ball(x: Array, radius: float) -> Array:
    """The sum of squares of integers is exact in any order."""
    norms = np.square(x.astype(np.float64)).sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        scaled = (x * (radius / np.sqrt(norms))).astype(F32)
    return np.where(norms <= radius * radius, x, scaled)


def simplex(x: Array) -> Array:
    """By sorting (Held, Wolfe and Crowder), in float64."""
    ordered = -np.sort(-x.astype(np.float64), axis=1)
    sums = (np.cumsum(ordered, axis=1) - 1) / np.arange(1, x.shape[1] + 1)
    theta = np.take_along_axis(sums, (ordered > sums).sum(axis=1, keepdims=True) - 1, axis=1)
    return np.maximum(x - theta, 0).astype(F32)


def mapped(prox: Prox | None, x: Array, t: float, *, dual: bool) -> Array:
    match prox:
        case None:
            return x
        case L1(lam):
            return soft(x, t * lam)
        case L2(lam):
            return x / F32(lam if dual else 1 + t * lam)
        case ElasticNet(l1, l2):
            return soft(x, t * l1) / F32(l2 if dual else 1 + t * l2)
        case L2Ball(radius):
            return ball(x, radius)
        case Simplex():
            return simplex(x)
    raise AssertionError(prox)


class Reference:
    def __init__(self, rule: ProxSGD | Dual, w: Array) -> None:
        self.rule, self.w, self.z = rule, w.copy(), np.zeros_like(w)

    def step(self, updates: list[Array]) -> None:
        total = updates[0]
        for one in updates[1:]:
            total = total + one
        dual = isinstance(self.rule, Dual)
        before = self.z if dual else self.w
        if self.rule.weight_decay:
            total = total + F32(self.rule.weight_decay) * before
        after = before - F32(self.rule.lr) * total
        if dual:
            self.z = after
        self.w = mapped(self.rule.prox, after, 1 if dual else self.rule.lr, dual=dual)


RULES: list[ProxSGD | Dual] = [
    ProxSGD(lr=0.5),
    ProxSGD(0.5, L1(2.5)),
    ProxSGD(0.5, L2(0.3), weight_decay=0.25),
    ProxSGD(0.5, ElasticNet(1.5, 0.7)),
    ProxSGD(0.5, L2Ball(3)),
    ProxSGD(0.5, Simplex()),
    Dual(),
    Dual(L1(3)),
    Dual(L2(0.3)),
    Dual(ElasticNet(2, 0.7), lr=0.5, weight_decay=0.5),
    Dual(L2Ball(20)),
    Dual(Simplex()),
]


def close(rule: ProxSGD | Dual) -> bool:
    """Sums of a row have the bits of NumPy's where the row's numbers have few digits, as those of Z."""
    return isinstance(rule.prox, Simplex) or (isinstance(rule, ProxSGD) and isinstance(rule.prox, L2Ball))


def check(ctx: hpcomm.Context, rule: ProxSGD | Dual, shape: tuple[int, int], **options: Any) -> bytes:
    ex = Exchange(ctx, {"W": initial(shape)}, rule=rule, reduce="sum", **grouped(options))
    reference = Reference(rule, initial(shape))
    for step in range(4):
        if step == 2:
            ex.set(lr=0.25)
            reference.rule = ex.rule  # type: ignore[assignment]
        ex.push_pull("W", update(step, ctx.rank, shape))
        reference.step([update(step, rank, shape) for rank in range(ctx.size)])
        if close(rule):
            np.testing.assert_allclose(ex.params["W"], reference.w, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(ex.params["W"], reference.w)
    return ex.params["W"].tobytes()


@pytest.mark.some(6)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shape", [SHAPE, LONG], ids=str)
def test_steps_are_those_of_numpy(rule: ProxSGD | Dual, shape: tuple[int, int]) -> None:
    (one, other) = run_threads(2, lambda ctx: check(ctx, rule, shape))
    assert one == other


@pytest.mark.some(2)
@pytest.mark.parametrize("rule", [ProxSGD(0.5, L1(2.5)), ProxSGD(0.5, L2Ball(3)), Dual(ElasticNet(2, 0.7))], ids=str)
@pytest.mark.parametrize("shape", [SHAPE, LONG], ids=str)
def test_same_bits_whatever_the_plan(
    rule: ProxSGD | Dual, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(isa: str = "best", transport: str = "shm", **options: Any) -> bytes:
        monkeypatch.setattr(Exchange, "_isa", isa)

        def body(ctx: hpcomm.Context) -> bytes:
            ex = Exchange(ctx, {"W": initial(shape)}, rule=rule, reduce="sum", **grouped(options))
            for step in range(3):
                if options.get("split"):
                    ex.split.fold("W", update(step, ctx.rank, shape))
                    ex.split.apply("W")
                else:
                    ex.push_pull("W", update(step, ctx.rank, shape))
            return ex.params["W"].tobytes()

        (found,) = set(run_threads(3, body, transport=transport))
        return found  # type: ignore[no-any-return]

    want = trained(progress="inline")
    ways: list[dict[str, Any]] = [{"isa": isa} for isa in _core.instruction_sets()]
    ways += [{"chunk_bytes": 64}, {"chunk_bytes": 1 << 20}, {"cores": 2, "progress": "thread", "chunk_bytes": 512}]
    ways += [{"shared_params": True}, {"depth": 2}, {"topology": ParameterServer("CC")}]
    ways += [{"topology": ParameterServer("CS", servers=[1, 2])}, {"topology": ParameterServer(apply_at="receivers")}]
    ways += [{"transport": "tcp"}, {"transport": "tcp", "cores": 2, "progress": "thread", "chunk_bytes": 512}]
    ways += [{"codec": hpcomm.codec.TopK(1.0)}, {"split": True}, {"topology": Hierarchy(hosts=[[0, 1], [2]])}]
    if isinstance(rule.prox, L1):  # a multiple of 1/4, which float16 has
        ways += [{"codec_out": "float16"}, {"codec_out": "float16", "chunk_bytes": 512}]
    for way in ways:
        assert trained(**{"progress": "inline", **way}) == want, way


@pytest.mark.parametrize("rule", [ProxSGD(0.5, L1(2.5)), Dual(ElasticNet(2, 0.7))], ids=str)
def test_updates_one_by_one(rule: ProxSGD | Dual) -> None:
    """Under ASYNC and SSP the prox follows each update."""

    def body(ctx: hpcomm.Context) -> None:
        for consistency in (hpcomm.ASYNC, SSP(2)):
            ex = Exchange(ctx, {"W": initial(SHAPE)}, consistency=consistency, rule=rule)
            reference = Reference(rule, initial(SHAPE))
            for step in range(4):
                ex.push_pull("W", update(step, 0, SHAPE))
                reference.step([update(step, 0, SHAPE)])
            np.testing.assert_array_equal(ex.pull("W"), reference.w)

    run_threads(1, body)


def test_each_rank_of_a_graph_has_a_prox() -> None:
    def on_graph(ctx: hpcomm.Context) -> None:
        rule = Dual(L1(3))
        ex = Exchange(ctx, {"W": initial(SHAPE)}, hpcomm.graphs.complete(2), hpcomm.NOTIFY_ACK, rule)
        reference = Reference(rule, initial(SHAPE))
        for step in range(3):
            ex.push_pull("W", update(step, ctx.rank, SHAPE))
            ctx.barrier()
            reference.step([F32(0.5) * update(step, rank, SHAPE) for rank in range(2)])
        np.testing.assert_array_equal(ex.params["W"], reference.w)

    run_threads(2, on_graph)


# ---- code of one's own ----------------------------------------------------------------------------------------------


def at_least() -> Prox:
    @hpcomm.kernels.prox(args={"least": 0.0})
    def at_least(rows: Any, args: Any) -> None:
        for i in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                rows[i, j] = max(rows[i, j], np.float32(args[3]))

    return at_least


def centred() -> Prox:
    """Takes the mean of each column: a projection that needs the whole matrix."""

    @hpcomm.kernels.prox(per="matrix")
    def centred(rows: Any, args: Any) -> int:
        for j in range(rows.shape[1]):
            mean = rows[:, j].sum() / np.float32(rows.shape[0])
            for i in range(rows.shape[0]):
                rows[i, j] -= mean
        return 0

    return centred


def test_rows_and_the_whole_matrix_in_numba() -> None:
    least, whole = at_least(), centred()
    assert (least.title(False), least.numbers) == ("at_least", {"least": 0})

    def body(ctx: hpcomm.Context) -> None:
        start, shape = {"rows": initial(SHAPE), "matrix": initial((64, 300))}, (64, 300)
        rules = {"rows": ProxSGD(0.5, least), "matrix": Dual(whole)}
        ex = Exchange(ctx, start, rule=rules, reduce="sum", chunk_bytes=512)
        assert [key.unit for key in ex.plan.keys] == [37, 64 * 300]
        assert int((ex.plan.rows.column("key") == 1).sum()) == 1
        rows, z = start["rows"].copy(), np.zeros(shape, F32)
        for step in range(3):
            if step == 2:
                ex.set(least=-2, keys="rows")
                rule = ex.rule["rows"]  # type: ignore[index]
                assert isinstance(rule, ProxSGD)
                assert rule.prox is not None
                assert rule.prox.numbers == {"least": -2}
            ex.step({"rows": update(step, ctx.rank, SHAPE), "matrix": update(step, ctx.rank, shape)})
            rows -= F32(0.5) * sum(update(step, rank, SHAPE) for rank in range(2))
            rows = np.maximum(rows, -2 if step == 2 else 0)
            z -= sum(update(step, rank, shape) for rank in range(2))  # exact, and so is a mean of 64 of them
            np.testing.assert_array_equal(ex.params["rows"], rows)
            np.testing.assert_array_equal(ex.params["matrix"], z - z.mean(axis=0))

    run_threads(2, body)


def test_kernels_that_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="cannot be compiled"):
        hpcomm.kernels.prox(lambda rows: None)
    with pytest.raises(InvalidArgument, match="would call the interpreter"):

        @hpcomm.kernels.prox
        def tells(rows: Any, args: Any) -> None:
            print(rows[0, 0])

    with pytest.raises(InvalidArgument, match=r"prox: per is 'columns': must be 'rows' or 'matrix'"):
        OwnProx(8, per="columns")
    wrong: tuple[Any, ...] = ({"lr": 1}, (1,) * 6, "ab", (float("nan"),))
    for args in wrong:
        with pytest.raises(InvalidArgument, match="prox: args"):
            OwnProx(8, args)
    with pytest.raises(InvalidArgument, match="prox: name is"):
        OwnProx(8, name="n" * 41)


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def sentences(body: Callable[[hpcomm.Context], str]) -> list[str]:
    """Both ranks' errors; the context is over then."""
    told: list[str] = []
    with pytest.raises(hpcomm.HpcommError):  # the last barrier
        run_threads(2, lambda ctx: told.append(body(ctx)))
    assert len(told) == 2
    return told


def test_a_nan_of_a_prox_names_key_rank_row_and_step() -> None:
    @hpcomm.kernels.prox
    def breaks(rows: Any, args: Any) -> None:
        for i in range(rows.shape[0]):
            if args[0] == 3 and rows[i, 0] == -1000:
                rows[i, 5] = np.nan

    @hpcomm.kernels.prox
    def fails(rows: Any, args: Any) -> int:
        return 7 if args[0] == 2 else 0

    def body(ctx: hpcomm.Context, rule: ProxSGD | Dual, steps: int) -> str:
        start = np.zeros((40, 37), F32)
        start[17, 0] = -1000
        keys, rules = {"b": np.zeros(3, F32), "W": start}, {"b": SGD(), "W": rule}
        ex = Exchange(ctx, keys, ParameterServer("CS", servers=[1]), rule=rules)
        for _ in range(steps):
            ex.push_pull("W", np.zeros_like(start))
        with pytest.raises((InvalidArgument, hpcomm.PeerFailed)) as raised:
            ex.push_pull("W", np.zeros_like(start))
        return str(raised.value)

    for rule, message, steps in (
        (ProxSGD(0.5, breaks), "rank 1: the prox of key W returned a NaN in row 17 at step 3", 2),
        (Dual(fails), "rank 1: the prox of key W returned 7 on rows 0 to 39 at step 2", 1),
    ):
        for told in sentences(functools.partial(body, rule=rule, steps=steps)):
            assert message in told


@pytest.mark.parametrize("prox", [L1(1), L2(1), ElasticNet(1, 1), L2Ball(), Simplex()], ids=str)
def test_a_nan_of_an_update_is_found_too(alone: hpcomm.Context, prox: Prox) -> None:
    ex = Exchange(alone, {"W": np.zeros((9, 1000), F32)}, rule=ProxSGD(0.5, prox))
    wrong = np.zeros((9, 1000), F32)
    wrong[4, 999] = np.nan
    with pytest.raises(InvalidArgument, match=r"rank 0: the prox of key W returned a NaN in row 4 at step 1"):
        ex.push_pull("W", wrong)


def test_values_that_are_refused() -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: L1(-1), r"L1: lam is -1: must be finite and 0 or more"),
        (lambda: L1(10**400), r"L1: lam is 10+: must be finite and 0 or more"),
        (lambda: L2("1"), r"L2: lam is '1': must be a number"),  # type: ignore[arg-type]
        (lambda: ElasticNet(1, float("inf")), r"ElasticNet: l2 is inf"),
        (lambda: L2Ball(-0.5), r"L2Ball: radius is -0.5"),
        (
            lambda: ProxSGD(prox=L1),  # type: ignore[arg-type]
            r"ProxSGD: prox is .*L1.*: must be a value of hpcomm.prox such as L1\(0.1\), or None",
        ),
        (lambda: ProxSGD(-1), r"ProxSGD: lr is -1"),
        (lambda: Dual(L2(0)), r"Dual: lam of L2\(lam=0.0\) is 0: must be more"),
        (lambda: Dual(ElasticNet(1, 0)), r"Dual: l2 of .* is 0"),
    ]
    for make, message in wrong:
        with pytest.raises(InvalidArgument, match=message):
            make()


def test_hyper_parameters_of_a_rule_and_its_prox() -> None:
    rule = ProxSGD(0.5, ElasticNet(1, 2))
    assert optim.arguments(rule) == (0.5, 0, 1, 2)
    assert optim.changed(rule, {"l2": 3, "lr": 1}) == ProxSGD(1, ElasticNet(1, 3))
    assert optim.with_arguments(rule, (1, 2, 3, 4)) == ProxSGD(1, ElasticNet(3, 4), 2)
    assert optim.c_name(rule) == "proxsgd(elastic_net)"
    assert optim.c_name(Dual(L2(1))) == "dual(dual_l2)"
    with pytest.raises(InvalidArgument, match=r"ProxSGD has no 'lam' to set: it has lr, weight_decay, l1, l2"):
        optim.changed(rule, {"lam": 1})
    with pytest.raises(InvalidArgument, match=r"L1: lam is -2"):
        optim.changed(Dual(L1(1)), {"lam": -2})
    nameless = OwnProx(8, (1, 2))
    assert optim.with_arguments(Dual(nameless), (1, 0, 3, 4)) == Dual(OwnProx(8, (3, 4)))
    for proxes in (L1(1), L2(1), ElasticNet(1, 1), L2Ball(), Simplex()):
        assert {proxes.title(True), proxes.title(False)} <= set(_core.PROXES)


def test_a_key_that_is_no_matrix_is_named(alone: hpcomm.Context) -> None:
    with pytest.raises(InvalidArgument, match=r"key 'b' has shape \(3,\): the prox of ProxSGD needs a matrix"):
        Exchange(alone, {"W": initial(SHAPE), "b": np.zeros(3, F32)}, rule=ProxSGD(prox=L1(1)))
    check(alone, ProxSGD(0.5), SHAPE)
    Exchange(alone, {"b": np.zeros(3, F32)}, rule=Dual())  # without a prox any shape is right


def test_a_plan_that_cuts_rows_apart_is_refused(alone: hpcomm.Context) -> None:
    plan = Plan.hub({"W": SHAPE}, [0], [0], 1, chunk_bytes=4096)
    with pytest.raises(
        hpcomm.ConfigError,
        match=r"row 0 has .* elements at offset 0 of key W, and the prox of rule "
        r"proxsgd\(l1\) reads whole rows of the matrix: make the plan with a unit of 37 elements",
    ):
        Exchange(alone, {"W": initial(SHAPE)}, rule=ProxSGD(prox=L1(1)), plan=plan)


@on_both
def test_ranks_with_other_proxes_are_told() -> None:
    others = [ProxSGD(0.5, Simplex()), ProxSGD(0.5, L1(2)), Dual(L1(1)), ProxSGD(0.5), SGD(0.5)]

    def body(ctx: hpcomm.Context, other: optim.AnyRule) -> None:
        with pytest.raises(hpcomm.ConfigError, match=r"rank 1 has|on rank 1"):
            Exchange(ctx, {"W": initial(SHAPE)}, rule=other if ctx.rank else ProxSGD(0.5, L1(1)), chunk_bytes=1 << 30)

    for other in others:
        run_threads(2, functools.partial(body, other=other))


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [ProxSGD(0.5, L1(2.5)), Dual(ElasticNet(2, 0.7)), Dual()], ids=str)
def test_training_goes_on_from_a_checkpoint(rule: ProxSGD | Dual) -> None:
    shards: list[Any] = [None] * 2
    wants: list[Any] = [None] * 2

    def train(ex: Exchange, rank: int, steps: range) -> bytes:
        for step in steps:
            ex.push_pull("W", update(step, rank, SHAPE))
        return ex.params["W"].tobytes()

    def before(ctx: hpcomm.Context) -> None:
        ex = Exchange(ctx, {"W": initial(SHAPE)}, rule=rule, chunk_bytes=2048)
        train(ex, ctx.rank, range(3))
        ex.set(lr=0.125)
        shards[ctx.rank] = through_a_file(ex.state_dict())
        ctx.barrier()
        wants[ctx.rank] = train(ex, ctx.rank, range(3, 6))

    def after(ctx: hpcomm.Context) -> None:
        ex = Exchange(ctx, {"W": -initial(SHAPE)}, rule=rule, chunk_bytes=512)
        train(ex, ctx.rank, range(10, 12))  # to be forgotten
        ex.load_state_dict(shards)
        assert ex.rule.lr == 0.125  # type: ignore[union-attr]
        assert train(ex, ctx.rank, range(3, 6)) == wants[ctx.rank]

    def another(ctx: hpcomm.Context) -> None:
        ex = Exchange(ctx, {"W": initial(SHAPE)}, rule=Dual(L2(1)))
        with pytest.raises(InvalidArgument, match="rule"):
            ex.load_state_dict(shards)

    run_threads(2, before)
    run_threads(2, after)
    run_threads(2, another)
