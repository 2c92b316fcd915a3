"""What an exchange is made of: options as values, one by one as keywords, and both."""

import inspect
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_type_hints

import numpy as np
import pytest

import hpcomm
from hpcomm import BSP, EngineOptions, Exchange, InvalidArgument, ParameterServer, Plan, PlanOptions, optim
from hpcomm.exchange.options import Keywords
from hpcomm.topology import Request

F32 = np.float32
PARAMS = {"fc": np.zeros((40, 30), F32), "bias": np.zeros(3, F32)}

# Another value than the default for every option that a world of one with a server can have.
PLAN: dict[str, Any] = {
    "chunk_bytes": 64,
    "depth": 2,
    "codec": "float16",
    "reduce": "sum",
    "cores": 2,
    "codec_out": "bfloat16",
}
ENGINE: dict[str, Any] = {
    "groups": (("bias", "fc"),),
    "shared_params": True,
    "check_finite": True,
    "progress": "inline",
    "patience": 3.0,
    "weight": 2.5,
}


def made(ctx: hpcomm.Context, **given: Any) -> tuple[Plan, PlanOptions, EngineOptions]:
    with Exchange(ctx, PARAMS, **given) as ex:
        return ex.plan, ex._state.made.plan, ex._state.made.engine


def test_keywords_are_fields() -> None:
    hints = {**get_type_hints(PlanOptions), **get_type_hints(EngineOptions)}
    keywords = get_type_hints(Keywords)
    assert keywords == {name: hints[name] for name in keywords}
    assert len(hints) == len(fields(PlanOptions)) + len(fields(EngineOptions)), "no option is in both"
    assert set(hints) == {*PLAN, *ENGINE, "in_place", "split"}
    assert not set(hints) & set(inspect.signature(Exchange).parameters)


def test_a_call_has_few_parameters() -> None:
    """self and **options stand for themselves in the signature, and the options are counted one by one."""
    own = len(inspect.signature(Exchange).parameters) - 1
    assert own + len(Keywords.__optional_keys__) <= 14


def test_options_are_values() -> None:
    assert PlanOptions() == PlanOptions(
        chunk_bytes=None, depth=1, codec="float32", reduce="mean", cores=None, codec_out="float32"
    )
    assert hash(EngineOptions(**ENGINE)) == hash(EngineOptions(**ENGINE))
    with pytest.raises(FrozenInstanceError):
        PlanOptions().depth = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        PlanOptions(32768)  # type: ignore[call-arg]  # a number alone says nothing


def test_an_option_is_the_same_in_a_value_and_as_a_keyword(alone: hpcomm.Context) -> None:
    plain = made(alone)
    assert plain[1:] == (PlanOptions(), EngineOptions())
    for name, value in PLAN.items():
        one, by, _ = made(alone, plan=PlanOptions(**{name: value}))
        if name in Keywords.__optional_keys__:
            assert (one, by) == made(alone, **{name: value})[:2]
        assert (one == plain[0]) == (name == "reduce"), f"{name} makes another plan; the sum of one is its mean"
    for name, value in ENGINE.items():
        value_given = made(alone, engine=EngineOptions(**{name: value}))
        if name in Keywords.__optional_keys__:
            assert value_given == made(alone, **{name: value})
        assert getattr(value_given[2], name) == value != getattr(EngineOptions(), name)


def test_options_reach_the_exchange(alone: hpcomm.Context) -> None:
    with Exchange(alone, PARAMS, plan=PlanOptions(**PLAN)) as ex:
        assert {row.codec_out for row in ex.plan.rows} == {"bfloat16"}
    plain = {**PLAN, "codec_out": "float32"}  # shared_params goes with no other
    with Exchange(alone, PARAMS, plan=PlanOptions(**plain), engine=EngineOptions(**ENGINE)) as ex:
        assert ex.plan == ParameterServer().compile(
            Request(PARAMS, 1, cores=2, chunk_bytes=64, depth=2, codec="float16", reduce="sum")
        )
        assert ex.stats().threads == 0
        assert not ex.params["fc"].flags.writeable
        assert ex.gradient("fc").dtype == np.float16
        with pytest.raises(InvalidArgument, match="check_finite refuses it"):
            ex.step({"fc": np.full((40, 30), np.nan, F32), "bias": np.zeros(3, F32)})
    graph = hpcomm.graphs.complete(1)
    with Exchange(alone, PARAMS, graph, BSP, hpcomm.Average(), engine=EngineOptions(in_place=True)) as ex:
        assert ex.gradient("fc") is ex.params["fc"]


def test_a_keyword_changes_what_a_value_says(alone: hpcomm.Context) -> None:
    _, by, _ = made(alone, plan=PlanOptions(codec="float16", chunk_bytes=64), codec="bfloat16")
    assert by == PlanOptions(codec="bfloat16", chunk_bytes=64)
    _, _, works = made(alone, engine=EngineOptions(progress="thread", check_finite=True), progress="inline")
    assert works == EngineOptions(progress="inline", check_finite=True)


def test_a_plan_made_earlier_says_what_options_would(alone: hpcomm.Context) -> None:
    plan = ParameterServer().compile(Request(PARAMS, 1, chunk_bytes=128))
    assert made(alone, plan=plan, chunk_bytes=64)[0] is plan


def test_presets_take_values_too(alone: hpcomm.Context) -> None:
    with hpcomm.parameter_hub(alone, PARAMS, plan=PlanOptions(chunk_bytes=64), progress="inline") as ex:
        assert (ex._state.made.plan.chunk_bytes, ex._state.made.engine.progress) == (64, "inline")


def test_codec_by_name_and_by_value(alone: hpcomm.Context) -> None:
    named: list[dict[str, Any]] = [{"codec": "float16"}, {"codec": hpcomm.codec.FLOAT16}]
    assert len({made(alone, **given)[1] for given in named} | {PlanOptions(**given) for given in named}) == 1
    assert made(alone, codec="float16")[0] == ParameterServer().compile(Request(PARAMS, 1, codec="float16"))


def test_codec_out_by_name_and_by_value(alone: hpcomm.Context) -> None:
    plan = ParameterServer().compile(Request(PARAMS, 1, codec_out="float16"))
    assert ParameterServer().compile(Request(PARAMS, 1, codec_out="fp16")) == plan
    assert PlanOptions(codec_out="half") == PlanOptions(codec_out="float16")
    of_value = PlanOptions(codec_out=hpcomm.codec.FLOAT16)
    assert made(alone, plan=of_value)[:2] == (plan, PlanOptions(codec_out="float16"))
    assert Plan.from_json(plan.to_json()) == plan
    assert PlanOptions(codec_out=None) == PlanOptions()
    with hpcomm.parameter_hub(alone, PARAMS, plan=PlanOptions(codec_out="float16")) as ex:
        assert ex.plan == plan
    with pytest.raises(InvalidArgument, match="codec_out is 'int8': must be one of 'float32', 'float16', 'bfloat16'"):
        ParameterServer().compile(Request(PARAMS, 1, codec_out="int8"))


def test_a_default_rule_is_told_once(
    alone: hpcomm.Context, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optim, "_told", set())
    made: list[Any] = [Exchange, Exchange, hpcomm.parameter_hub, hpcomm.parameter_hub]
    assert [make(alone, PARAMS).rule for make in made] == [hpcomm.SGD()] * 2 + [hpcomm.Nesterov()] * 2
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("rule is not given: updates are applied by SGD(lr=0.01, weight_decay=0.0): give one")
    assert "applied by Nesterov(lr=0.01, momentum=0.9, weight_decay=0.0)" in second
    Exchange(alone, PARAMS, rule=hpcomm.SGD())
    hpcomm.parameter_flow(alone, PARAMS, delta=0.1)
    hpcomm.stochastic_reduce(alone, PARAMS)
    assert len(caplog.records) == 2


def test_unknown_keywords(alone: hpcomm.Context) -> None:
    with pytest.raises(TypeError, match=r"got 'cores' by itself: give plan=hpcomm.PlanOptions\(cores=...\)"):
        Exchange(alone, PARAMS, cores=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'patience' by itself: give engine=hpcomm.EngineOptions"):
        hpcomm.parameter_hub(alone, PARAMS, patience=2.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'chunkbytes': did you mean 'chunk_bytes'\?"):
        Exchange(alone, PARAMS, chunkbytes=64)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'zeal': the options are chunk_bytes, codec, depth, progress"):
        Exchange(alone, PARAMS, zeal=0.9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'momentum': give it to the rule, as in rule=hpcomm.Momentum\(lr=0.1"):
        hpcomm.parameter_hub(alone, PARAMS, momentum=0.9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match='\'compression\': give codec="float16" or codec="bfloat16"'):
        Exchange(alone, PARAMS, compression="fp16")  # type: ignore[call-arg]
