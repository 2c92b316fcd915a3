"""Codecs as values: what they refuse, how they are told, and what plans make of them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcomm import InvalidArgument, Plan, codec, model
from hpcomm.codec import FLOAT32, Auto, Codec, ErrorFeedback, Factors, Float4, OneBit, Own, Threshold, TopK
from hpcomm.plan import Key

numbers = st.floats(allow_nan=True) | st.integers(-10, 10) | st.booleans() | st.text(max_size=3) | st.none()


@given(numbers)
def test_a_threshold_is_a_finite_number_from_0_on(value: Any) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    if good:
        assert Threshold(value).delta == value
        return
    with pytest.raises(InvalidArgument, match=r"^Threshold: delta is .*: must be a finite number, 0 or more"):
        Threshold(value)


@given(numbers)
def test_a_fraction_is_above_0_and_at_most_1(value: Any) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    if good:
        assert TopK(value).fraction == value
        return
    with pytest.raises(InvalidArgument, match=r"^TopK: fraction is .*: must be above 0 and at most 1"):
        TopK(value)


class Address:
    """What a filter that is compiled has."""

    address = 4096
    __name__ = "mine"
    slots = 2


WRONG: dict[str, Any] = {
    r"Threshold: values is 'int8': must be one of 'float32', 'float16', 'bfloat16'": lambda: Threshold(
        1, values="int8"
    ),
    r"TopK: form is 'dense': must be one of 'bytes', 'paper'": lambda: TopK(0.1, form="dense"),
    r"TopK: compress is 'gzip': must be one of None, 'lz4', 'snappy', 'zstd', 'zlib'": lambda: TopK(
        0.1, compress="gzip"
    ),
    r"TopK: kernel is 'cuda': must be one of 'auto', 'numba', 'c', or a filter of hpcomm.kernels": lambda: TopK(
        0.1, kernel="cuda"
    ),
    r"TopK: kernel is None: must be the address of machine code": lambda: TopK(0.1, kernel=None),
    r"TopK: values is 'float16' and kernel 'numba': a filter outside the library writes float32": lambda: TopK(
        0.1, values="float16", kernel="numba"
    ),
    r"Threshold: values is 'bfloat16' and kernel <": lambda: Threshold(1, values="bfloat16", kernel=Address()),
    r"Threshold: decays is 1: must be True or False": lambda: Threshold(1, decays=1),  # type: ignore[arg-type]
    r"OneBit: unit is 0: must be 1 to 536870912": lambda: OneBit(0),
    r"OneBit: unit is 2.5: must be an int": lambda: OneBit(2.5),  # type: ignore[arg-type]
    r"OneBit: compress is 'x'": lambda: OneBit(compress="x"),
    r"Float4: unit is 15: must be 16 to 536870912": lambda: Float4(15),
    r"Float4: unit is None: must be an int": lambda: Float4(None),  # type: ignore[arg-type]
    r"Float4: compress is 'x'": lambda: Float4(compress="x"),
    r"ErrorFeedback: codec is Factors\(8\), which leaves nothing out": lambda: ErrorFeedback(Factors(8)),
    r"ErrorFeedback: codec is ErrorFeedback": lambda: ErrorFeedback(ErrorFeedback(TopK(0.1))),
    r"ErrorFeedback: codec is 3": lambda: ErrorFeedback(3),
    r"codec is 'auto': an exchange chooses it": lambda: ErrorFeedback(Auto()),
    r"codec is 'int8'": lambda: ErrorFeedback("int8"),
    r"ErrorFeedback: on is None": lambda: ErrorFeedback(TopK(0.1), on=None),  # type: ignore[arg-type]
    r"Auto: codec is 'float16': must be a value of hpcomm.codec that sends pieces": lambda: Auto("float16"),
    r"Auto: codec is Codec\(name='float16'\)": lambda: Auto(Codec("float16")),
    r"Own: encode is None: must be the address of machine code": lambda: Own(None, Address()),
    r"Own: decode_add is 0": lambda: Own(Address(), 0),
    r"Own: args are \(1, 'x'\): must be numbers": lambda: Own(Address(), Address(), args=(1, "x")),
    r"Own: args are \(1, 2, 3, 4, 5, 6, 7, 8\): must be at most 7 finite numbers": lambda: Own(
        Address(), Address(), args=tuple(range(1, 9))
    ),
    r"Own: args are \[inf\]": lambda: Own(Address(), Address(), args=[math.inf]),
    r"Own: state_slots is 9: must be 0 to 8": lambda: Own(Address(), Address(), state_slots=9),
    r"Own: title is 5": lambda: Own(Address(), Address(), title=5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_codecs_refuse(sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{sentence}"):
        WRONG[sentence]()


def test_codecs_are_told_by_what_is_not_as_always() -> None:
    assert repr(Threshold(2)) == "Threshold(2.0)"
    assert repr(TopK(0.1, values="float16", kernel="c")) == "TopK(0.1, values='float16', kernel='c')"
    assert repr(Threshold(2, decays=False)) == "Threshold(2.0, decays=False)"
    assert repr(Auto()) == "Auto(codec=TopK(0.01))"
    assert TopK(0.1) == TopK(0.1) != TopK(0.1, form="paper")
    assert len({TopK(0.1), TopK(0.1), TopK(0.2)}) == 2


def test_an_own_codec_takes_its_name_and_its_state_from_its_encoder() -> None:
    own = Own(Address(), Address(), args={"scale": 2})
    assert (own.title, own.state_slots, own.args, own.name) == ("mine", 2, (2.0,), "own")
    assert Own(Address(), Address(), title="other", state_slots=0).slots == 0


def test_feedback_of_a_dtype_is_a_threshold_of_nothing() -> None:
    fed = ErrorFeedback("float16")
    assert fed.name == "threshold"
    assert fed.settings(()) == Threshold(0.0, decays=False, values="float16").settings(())
    assert fed.dtype == np.float32
    plain = ErrorFeedback("float16", on=False)
    assert (plain.name, plain.dtype.name, plain.settings(())) == ("float16", "float16", None)
    assert ErrorFeedback("float32").name == "float32"
    for inner in (TopK(0.1), OneBit(), Threshold(1)):
        settings = inner.settings((3, 4))
        assert ErrorFeedback(inner).settings((3, 4)) == settings
        assert ErrorFeedback(inner, on=False).settings((3, 4)) == {**(settings or {}), "no_feedback": True}


def test_feedback_of_4_bits_is_given_by_hand() -> None:
    assert not Float4().keeps
    assert Float4(32).settings(()) == {"unit": 32, "compress": 0, "no_feedback": True}
    fed, off = ErrorFeedback(Float4(32)), ErrorFeedback(Float4(32), on=False)
    assert (fed.keeps, fed.name, fed.unit_of((3, 4))) == (True, "float4", 32)
    assert fed.settings(()) == {"unit": 32, "compress": 0, "no_feedback": False}
    assert fed.most_bytes((64,), 64) == Float4(32).most_bytes((64,), 64) == 16 + 8 + 32
    assert (off.keeps, off.settings(())) == (False, Float4(32).settings(()))


@pytest.mark.parametrize(
    ("shape", "unit"),
    [((), 4096), ((9,), 4096), ((64, 3, 3, 3), 27), ((10, 100), 100), ((100, 1), 4096), ((100, 16), 16)],
)
def test_a_unit_is_what_one_output_has(shape: tuple[int, ...], unit: int) -> None:
    assert OneBit().unit_of(shape) == unit
    assert OneBit(7).unit_of(shape) == 7
    assert TopK(0.1).unit_of(shape) == 1


# ---- by key, and in plans --------------------------------------------------------------------------------------------


def test_values_names_and_mappings() -> None:
    keys = ["a", "b", "c"]
    assert codec.by_key(keys, TopK(0.1)) == [TopK(0.1)] * 3
    assert codec.by_key(keys, {"b": TopK(0.1), "c": "float16"}) == [FLOAT32, TopK(0.1), Codec("float16")]
    assert codec.asked(keys, {"a": "auto"}) == [Auto(), FLOAT32, FLOAT32]
    with pytest.raises(InvalidArgument, match=r"codec of 'a' is 'auto', which an exchange chooses"):
        codec.by_key(keys, {"a": "auto"})
    with pytest.raises(
        InvalidArgument, match=r"codec is 'gzip': must be one of .*, 'auto', or a value of hpcomm.codec"
    ):
        codec.by_key(keys, "gzip")
    with pytest.raises(InvalidArgument, match=r"codec_out of 'b' is TopK\(0.1\): parameters are sent as arrays"):
        codec.by_key_out(keys, {"b": TopK(0.1)})
    with pytest.raises(InvalidArgument, match=r"codec_out is 'auto': must be one of 'float32', 'float16', 'bfloat16'$"):
        codec.by_key_out(keys, "auto")


SHAPES = {"w": (300, 70), "b": (5,)}


def plans() -> dict[str, Plan]:
    given: dict[str, Any] = {"w": TopK(0.1), "b": OneBit(3)}
    weights = np.full((1, 2, 2), 0.5)
    return {
        "hub": Plan.hub(SHAPES, [0, 1], [0, 1], 2, codec=given),
        "receivers": Plan.hub(SHAPES, [0, 1], [0, 1], 2, codec=given, apply_at="receivers"),
        "hosts": Plan.hosts(SHAPES, [[[0, 1], [2]]], 3, codec=given),
        "tree": Plan.tree(SHAPES, [-1, 0], codec=given),
        "graph": Plan.graph(SHAPES, weights, codec=given),
    }


@pytest.mark.parametrize("name", ["hub", "receivers", "hosts", "tree", "graph"])
def test_plans_name_codecs_and_keep_units(name: str) -> None:
    plan = plans()[name]
    assert [key.unit for key in plan.keys] == [1, 3]
    wires = {(row.key, wire) for row in plan.rows for wire in (row.codec_in, row.codec_out)}
    assert {(0, "topk"), (1, "onebit")} <= wires
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert [key.unit for key in again.keys] == [1, 3]
    assert str(plan)


def test_a_key_has_a_unit_of_one_element_or_more() -> None:
    with pytest.raises(InvalidArgument, match="key 'w': unit is 0: must be 1 to"):
        Key("w", (5,), unit=0)


# ---- what "auto" weighs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "crosses", "encodes", "decodes"),
    [
        ("hub", 8000, 1000, 4000),  # rank 0 serves: two updates come from the other host
        ("hosts", 4000, 1000, 1000),  # one fold comes, and arrays within the hosts
        ("receivers", 8000, 2000, 5000),  # the fold goes to each worker, and is encoded once
    ],
)
def test_a_key_weighs_what_goes_between_hosts(how: str, crosses: int, encodes: int, decodes: int) -> None:
    keys = {"w": (1000,)}
    plan = {
        "hub": lambda: Plan.hub(keys, range(4), [0], 4, codec=TopK(0.1)),
        "hosts": lambda: Plan.hosts(keys, [[[0, 1], [2, 3]]], 4, leaders=[0, 2], codec=TopK(0.1)),
        "receivers": lambda: Plan.hub(keys, range(4), [0], 4, codec=TopK(0.1), apply_at="receivers"),
    }[how]()
    load = model.load_of(plan, [0, 0, 2, 2])
    found = model.busiest_link(*load.by_host(model.UPDATES)), load.encodes.max(), load.decodes.max()
    assert found == (crosses, encodes, decodes)
