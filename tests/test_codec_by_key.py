"""A codec for each key: each key has the bits that it has in an exchange with its codec alone."""

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from flat import grouped
from numpy.typing import NDArray

import hpcomm
from hpcomm import (
    ASYNC,
    BARRIER,
    BSP,
    NOTIFY_ACK,
    SSP,
    Average,
    Consistency,
    EngineOptions,
    Exchange,
    InvalidArgument,
    Momentum,
    ParameterServer,
    Plan,
    PlanOptions,
)
from hpcomm.graphs import complete, ring, root_expander
from hpcomm.topology import Request

F32 = np.float32
SHAPES = {"conv": (3, 5, 2), "fc": (400, 70), "bias": (7,), "scale": ()}
CODECS = {
    "conv": "bfloat16",
    "fc": "float16",
    "bias": "float32",
}  # scale takes float32, as a key does that is not named
OUT = {"fc": "bfloat16", "scale": "float16"}


def values(seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(F32).reshape(shape) for name, shape in SHAPES.items()}


def codec_of(codecs: dict[str, str], name: str) -> str:
    return codecs.get(name, "float32")


def bits(ex: Exchange) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in ex.params.items()}


def codecs_of(plan: Plan) -> dict[str, tuple[str, str]]:
    """The codecs of each key's rows, which are the same in all of them."""
    found: dict[str, set[tuple[str, str]]] = {key.name: set() for key in plan.keys}
    for row in plan.rows:
        found[plan.keys[row.key].name].add((row.codec_in, row.codec_out))
    return {name: pair for name, (pair,) in found.items()}


def push_pull(ex: Exchange, name: str, value: Any) -> None:
    if ex._state.made.engine.in_place:
        ex.params[name][...] = value
        ex.push_pull(name)
    else:
        ex.push_pull(name, value)


def step(ex: Exchange, seed: int) -> None:
    for name, value in values(seed).items():
        push_pull(ex, name, value + ex.params[name] if ex._state.made.engine.in_place else value)


def trained(transport: dict[str, Any], **options: Any) -> list[dict[str, bytes]]:
    """What each of three ranks has after three steps; nothing on one that only serves."""

    def body(context: hpcomm.Context) -> dict[str, bytes]:
        with Exchange(context, values(0), **grouped({"progress": "inline", **options})) as ex:
            if not ex.params:
                ex.serve(20)
            for n, rank in itertools.product(range(3), range(context.size)):
                if options.get("consistency") == ASYNC:  # one after the other, so that it repeats
                    if rank == context.rank:
                        step(ex, 10 * n + rank + 1)
                    context.barrier()
                elif rank == context.rank and ex.params:
                    step(ex, 10 * n + rank + 1)
            for name in ex.params:
                ex.pull(name)
            return bits(ex)

    return run_threads(3, body, **transport)


HUBS: dict[str, dict[str, Any]] = {
    "CS": {"rule": Momentum(lr=0.1)},
    "CC": {"topology": ParameterServer("CC"), "cores": 2, "progress": "thread", "chunk_bytes": 1024, "depth": 2},
    "NCC": {"topology": ParameterServer("NCC")},
    "ASYNC": {"consistency": ASYNC},
    "quorum": {"consistency": Consistency(quorum=2, late="drop", grace=math.inf)},
}
GRAPHS: dict[str, dict[str, Any]] = {
    "models": {"topology": root_expander, "rule": Average()},
    "gradients, BSP": {"topology": ring, "consistency": BSP, "rule": Momentum(lr=0.1), "cores": 2, "chunk_bytes": 1024},
    "in place": {"topology": ring, "rule": Average(), "in_place": True},
    "quorum": {
        "topology": complete,
        "rule": Average(),
        "consistency": Consistency(quorum=1, late="drop", waits_for="neighbours", grace=math.inf),
    },
}


@pytest.mark.some(6)
@pytest.mark.parametrize("case", HUBS)
def test_each_key_has_the_bits_of_its_codec_alone_with_servers(case: str, transport: dict[str, Any]) -> None:
    alone = {
        pair: trained(transport, codec=pair[0], codec_out=pair[1], **HUBS[case])
        for pair in {(codec_of(CODECS, name), codec_of(OUT, name)) for name in SHAPES}
    }
    mixed = trained(transport, codec=CODECS, codec_out=OUT, **HUBS[case])
    for rank, have in enumerate(mixed):
        for name, found in have.items():
            assert found == alone[codec_of(CODECS, name), codec_of(OUT, name)][rank][name], (rank, name)
    assert len({alone[pair][-1]["conv"] for pair in alone}) == 4, "the codecs make a difference"


@pytest.mark.some(5)
@pytest.mark.parametrize("case", GRAPHS)
def test_each_key_has_the_bits_of_its_codec_alone_on_a_graph(case: str, transport: dict[str, Any]) -> None:
    options = {"consistency": NOTIFY_ACK, **GRAPHS[case]}
    alone = {codec: trained(transport, codec=codec, **options) for codec in ("float32", "float16", "bfloat16")}
    mixed = trained(transport, codec=CODECS, **options)
    for rank, have in enumerate(mixed):
        for name, found in have.items():
            assert found == alone[codec_of(CODECS, name)][rank][name], (rank, name)
    assert len({alone[codec][0]["conv"] for codec in alone}) == 3, "the codecs make a difference"


@on_both
@pytest.mark.parametrize("consistency", [SSP(1), BARRIER, ASYNC], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_folds_of_what_is_there(consistency: Consistency, in_place: bool) -> None:
    """Two ranks push the same models over and over, until both have the average of them, each key with its codec."""
    want: list[dict[str, bytes]] = [{}, {}]

    def body(context: hpcomm.Context) -> None:
        options: dict[str, Any] = {"topology": complete(2), "rule": Average(), "in_place": in_place}
        mine, end = values(context.rank), time.monotonic() + 20
        for codec in ("float32", "float16", "bfloat16"):
            with Exchange(context, mine, consistency=NOTIFY_ACK, codec=codec, **grouped(options)) as ex:
                for name, value in mine.items():
                    push_pull(ex, name, value)
                want[context.rank] |= {name: had for name, had in bits(ex).items() if codec_of(CODECS, name) == codec}
        with Exchange(context, mine, consistency=consistency, codec=CODECS, **grouped(options)) as ex:
            there = False
            while not there:
                assert time.monotonic() < end
                for name, value in mine.items():
                    push_pull(ex, name, value)
                told = context.allgather(bytes([bits(ex) == want[context.rank]]))
                there = all(part == b"\1" for part in told)

    run_threads(2, body)


# ---- what a mapping is ---------------------------------------------------------------------------------------------


def test_a_mapping_by_each_name_that_codecs_have(alone: hpcomm.Context) -> None:
    want = {name: (codec_of(CODECS, name), codec_of(OUT, name)) for name in SHAPES}
    by_value = {name: hpcomm.codec.Codec(codec) for name, codec in CODECS.items()}
    ways: list[dict[str, Any]] = [
        {"codec": CODECS, "codec_out": OUT},
        {"codec": by_value, "codec_out": OUT},
        {"plan": PlanOptions(codec=CODECS, codec_out=OUT)},
        {"plan": PlanOptions(codec="float16", codec_out=OUT), "codec": CODECS},
        {"plan": ParameterServer().compile(Request(SHAPES, 1, codec=by_value, codec_out=OUT))},
        {"plan": Plan.hub(SHAPES, [0], [0], 1, codec=CODECS, codec_out=OUT)},
    ]
    for way in ways:
        with hpcomm.parameter_hub(alone, values(0), **grouped(way)) as ex:
            assert codecs_of(ex.plan) == want, way
            for name in SHAPES:
                assert ex.gradient(name).dtype == hpcomm.codec.Codec(codec_of(CODECS, name)).dtype
    plan = Plan.graph(SHAPES, np.ones((1, 1, 1)), codec=CODECS)
    assert codecs_of(plan) == {name: (codec_of(CODECS, name), "float32") for name in SHAPES}
    with hpcomm.stochastic_reduce(alone, values(0), codec=CODECS) as ex:
        assert codecs_of(ex.plan) == codecs_of(plan)
    with Exchange(alone, values(0), codec={}, plan=PlanOptions(codec_out={"fc": "float32"})) as ex:
        assert codecs_of(ex.plan) == dict.fromkeys(SHAPES, ("float32", "float32"))


def test_a_mapping_is_read_once() -> None:
    given = dict(CODECS)
    options = PlanOptions(codec=given)
    given["fc"] = "float32"
    assert options.codec == CODECS


def test_a_plan_as_text_keeps_the_codecs() -> None:
    plan = ParameterServer().compile(Request(SHAPES, 2, codec=CODECS, codec_out=OUT, chunk_bytes=1024))
    again = Plan.from_json(plan.to_json())
    assert again == plan != ParameterServer().compile(Request(SHAPES, 2, codec=CODECS, chunk_bytes=1024))
    assert (
        codecs_of(again) == codecs_of(plan) == {name: (codec_of(CODECS, name), codec_of(OUT, name)) for name in SHAPES}
    )


def test_in_place_takes_a_slot_for_the_model_only_if_no_key_is_encoded(alone: hpcomm.Context) -> None:
    options: dict[str, Any] = {"topology": complete(1), "rule": Average(), "in_place": True}
    for codec, depth in (({"fc": "float32"}, 2), ({"scale": "float16"}, 1)):
        with Exchange(alone, values(0), codec=codec, **grouped(options)) as ex:
            assert {row.depth for row in ex.plan.rows} == {depth}


def test_check_finite_goes_by_the_codec_of_the_key(alone: hpcomm.Context) -> None:
    large = {name: np.full(shape, 70000, F32) for name, shape in SHAPES.items()}
    ex = Exchange(alone, values(0), codec=CODECS, engine=EngineOptions(check_finite=True))
    for name in SHAPES:
        if codec_of(CODECS, name) == "float16":
            with pytest.raises(InvalidArgument, match="the gradient of key fc"):
                ex.push_pull(name, large[name])
        else:
            ex.push_pull(name, large[name])
    with pytest.raises(InvalidArgument, match="'fc' is 70000 at element 0, too large for float16"):
        ex.step(large)


def test_a_fold_of_ones_own_reads_the_wires_of_all_keys(alone: hpcomm.Context) -> None:
    pytest.importorskip("numba")

    @hpcomm.kernels.fold
    def add(acc: Any, update: Any, weight: float, args: Any) -> None:
        for i in range(acc.size):
            acc[i] += np.float32(weight) * update[i]

    @hpcomm.kernels.rule(fold=add)
    def plain(param: Any, acc: Any, count: int, state: Any, args: Any) -> None:
        for i in range(param.size):
            param[i] -= acc[i]

    Exchange(alone, values(0), rule=plain).close()
    with pytest.raises(hpcomm.ConfigError, match=r"reads float32, and row 1 takes its inputs as float16"):
        Exchange(alone, values(0), rule=plain, codec={"fc": "float16"})


# ---- what goes on with it ------------------------------------------------------------------------------------------


@on_both
def test_a_checkpoint_goes_on_with_the_same_bits() -> None:
    shards: list[Any] = [None] * 2
    want: list[Any] = [None] * 2
    options: dict[str, Any] = {"rule": Momentum(lr=0.1), "codec": CODECS, "codec_out": OUT, "progress": "inline"}

    def before(context: hpcomm.Context) -> None:
        with Exchange(context, values(0), **grouped(options)) as ex:
            step(ex, context.rank + 1)
            shards[context.rank] = ex.state_dict()
            context.barrier()
            step(ex, context.rank + 11)
            want[context.rank] = bits(ex)

    def after(context: hpcomm.Context) -> None:
        with Exchange(context, values(9), chunk_bytes=4096, **grouped(options)) as ex:
            ex.load_state_dict(shards)
            step(ex, context.rank + 11)
            assert bits(ex) == want[context.rank]

    run_threads(2, before)
    run_threads(2, after)


def train_on(ex: Exchange) -> None:
    while True:
        step(ex, 11)


@on_both
@pytest.mark.parametrize("kind", ["servers", "graph"])
def test_recover_keeps_the_codecs(kind: str) -> None:
    """Rank 2 leaves; those that are left have an exchange with the same codecs."""
    options: dict[str, Any] = {"codec": CODECS, "progress": "inline", "topology": ring, "rule": Average()}
    out: dict[str, str] = {}
    if kind == "servers":
        options |= {"codec_out": OUT, "topology": ParameterServer(servers=[0, 1]), "rule": Momentum(lr=0.1)}
        out = OUT
    want = {name: (codec_of(CODECS, name), codec_of(out, name)) for name in SHAPES}
    done: list[int] = []

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, values(0), **grouped(options))
        step(ex, context.rank + 1)
        context.barrier()
        if context.rank == 2:
            context.close()
            raise Left
        with pytest.raises(hpcomm.PeerFailed):
            train_on(ex)
        recovered = hpcomm.recover(ex).exchange
        assert codecs_of(recovered.plan) == want
        assert recovered.gradient("conv").dtype == hpcomm.codec.BFLOAT16.dtype
        step(recovered, context.rank + 21)
        recovered.close()
        recovered.context.close()
        context.close()
        done.append(context.rank)
        raise Left

    run_threads(3, body)
    assert sorted(done) == [0, 1]
