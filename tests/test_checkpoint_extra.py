"""A trainer's values come back equal and with their types, or are refused; files of different steps are not mixed."""

import random
from collections import Counter, OrderedDict, defaultdict
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import on_both, run_threads
from hypothesis import given
from hypothesis import strategies as st
from test_checkpointer import drawn, exchange, on_disk
from told import logs

from hpcomm import SSP, Checkpointer, CheckpointError, Context, InvalidArgument, latest, restore
from hpcomm.checkpoint import files
from hpcomm.checkpoint.files import Label


class Level(IntEnum):
    HIGH = 1


class Pair(NamedTuple):
    first: int
    second: int


class Own(dict):  # type: ignore[type-arg]
    """A mapping of the user's."""


def alike(have: Any, want: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(have) is not type(want):
        return False
    if isinstance(want, np.ndarray | np.generic):
        return bool(have.dtype == want.dtype and have.shape == want.shape and have.tobytes() == want.tobytes())
    if isinstance(want, float | complex):
        return repr(have) == repr(want)
    if isinstance(want, dict):
        return len(have) == len(want) and all(map(alike, list(have.items()), list(want.items())))
    if isinstance(want, set | frozenset):
        return have == want and sorted(map(repr, have)) == sorted(map(repr, want))
    if isinstance(want, list | tuple):
        return len(have) == len(want) and all(map(alike, have, want))
    return bool(have == want)


def through_a_file(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    label = Label(1, 0, 1, "abcd", "0123", 0)
    files.write(folder, label, {files.GIVEN: files.frozen(values, "extra")})
    return files.thawed(files.read(folder / label.name)[1])


def kinds() -> dict[str, Any]:
    counts = defaultdict(int, {"a": 1})
    return {
        "milestones": Counter({3: 1, 6: 2}),
        "keys": {1: "a", 2.5: "b", None: "c", (1, "x"): "d", b"e": "f", False: "g", np.int8(7): "h", "8": "i", 8: "j"},
        "nested": [(1, [2, (3,)]), {"a": {0: {1: ()}}}],
        "numbers": [0, -1, 2**63, -(2**64), 10**6000, 0.1, -0.0, float("inf"), float("-inf"), float("nan"), 1 + 2j],
        "numpy": [np.float64(0.1), np.float32(0.1), np.int64(-5), np.bool_(True), np.float16("nan"), np.str_("a")],
        "dates": [np.datetime64("2024-05-06"), np.array(["2024-05-06"], "M8[ns]")],
        "arrays": {"f": np.arange(6).reshape(2, 3).T, 0: np.zeros((0, 4), np.int8), "big": np.arange(3, dtype=">f8")},
        "no dimension": np.array(5.0),
        "texts": ["", "später", "\ud800", "a\0b", np.array(["a", "bcd"])],
        "sets": [{1, (2, 3)}, frozenset({None, "a"}), set()],
        "bytes": [b"", b"\0\xff", bytearray(b"ab")],
        "range": range(3, 9, 2),
        "ordered": OrderedDict([("b", 1), ("a", 2)]),
        "by default": [counts, defaultdict(list), defaultdict(None, {1: 2})],
        "python's random": random.Random(1).getstate(),
        "old random": np.random.RandomState(1).get_state(),
        "random": np.random.default_rng(1).bit_generator.state,
        "none": None,
    }


def test_every_value_comes_back_with_its_type(tmp_path: Path) -> None:
    have, want = through_a_file(tmp_path, kinds()), kinds()
    assert list(have) == list(want)
    for name, value in want.items():
        assert alike(have[name], value), (name, have[name])
    have["arrays"]["f"][:] = 0  # it is the trainer's own


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda own: (
        st.lists(own)
        | st.lists(own).map(tuple)
        | st.dictionaries(st.integers() | st.text() | st.booleans() | st.tuples(st.integers()), own)
    ),
    max_leaves=10,
)


@given(value=plain)
def test_any_value_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    trees = files.frozen({"x": value}, "extra")
    assert alike(files.thawed({files.GIVEN: trees})["x"], value)


def deep() -> Any:
    found: list[Any] = []
    for _ in range(200):
        found = [found]
    return found


def circle() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (len, r"extra\['x'\] is a builtin_function_or_method: must be an array"),
        ({"a": [0, Level.HIGH]}, r"extra\['x'\]\['a'\]\[1\] is a Level"),
        ({Level.HIGH: 0}, r"key <Level.HIGH: 1> of extra\['x'\] is a Level"),
        (Pair(1, 2), r"extra\['x'\] is a Pair"),
        (Own(a=1), r"extra\['x'\] is a Own"),
        (Fraction(1, 2), r"extra\['x'\] is a Fraction"),
        (defaultdict(lambda: 1), r"extra\['x'\] is a defaultdict"),
        (np.array([object()]), r"extra\['x'\] is object: give a view"),
        ([np.zeros(2, [("a", "f4")])], r"extra\['x'\]\[0\] is \[\('a', '<f4'\)\]: give a view"),
        (np.ma.masked_array([1, 2], [True, False]), r"extra\['x'\] is int64: give a view"),
        (np.str_("a\0"), r"extra\['x'\] is <U2: give a view"),
        (deep(), "more than 100 deep"),
        (circle(), "or one contains itself"),
    ],
)
def test_a_value_that_would_come_back_as_another_is_refused(value: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        files.frozen({"x": value}, "extra")


def test_a_file_of_before_is_read(tmp_path: Path) -> None:
    """Its values were plain JSON and arrays, and its label had no steps of the exchange."""
    label = Label(1, 0, 1, "abcd", "0123", 0)
    files.write(tmp_path, label, {"extra": {"rng": {"a": [1]}, "x": np.arange(3)}})
    path = tmp_path / label.name
    sections = files.read(path)[1]
    found = files.thawed(sections)
    assert found["rng"] == {"a": [1]}
    np.testing.assert_array_equal(found["x"], np.arange(3))


# ---- one step of the job ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True], ids=["one directory", "each its own"])
@on_both
def test_files_of_different_steps_are_no_checkpoint(tmp_path: Path, own: bool) -> None:
    """Rank 1 does not count one step. Step 1 is whole, and stays."""

    def body(context: Context) -> None:
        folder = tmp_path / str(context.rank) if own else tmp_path
        with exchange(context) as ex, Checkpointer(ex, folder, every=1, keep=1) as ckpt:
            for step in range(1, 6):
                ex.step(drawn(10 * step + context.rank))
                if step == 1:
                    one = {name: value.copy() for name, value in ex.params.items()}
                if step != 2 or context.rank == 0:
                    ckpt.after(step - (context.rank == 1 and step > 2))
            ckpt._finish()
            context.barrier()
            ckpt._writer.submit(ckpt._remove_old).result()
            context.barrier()
        again = exchange(context)
        with pytest.raises(CheckpointError, match=r"step 4 mixes different steps of the job.*\(rank 0's after 4,"):
            restore(again, folder, 4)
        found = restore(again, folder)
        assert found is not None
        assert found.step == 1
        for name, value in one.items():
            np.testing.assert_array_equal(again.params[name], value)

    with logs(r"rank [01]: the checkpoint of step \d mixes different steps of the job, and") as told:
        run_threads(2, body)
    assert any(": it is left out" in sentence for sentence in told)
    if own:
        return
    assert latest(tmp_path) == 1

    def fewer(context: Context) -> None:
        """It reads all files."""
        for found in files.listed(tmp_path):
            if found.step == 1 and context.rank == 0:
                found.path.unlink()
        with pytest.raises(CheckpointError, match=r"step 4 mixes different steps of the job.*none before it is whole"):
            restore(exchange(context), tmp_path)

    run_threads(1, fewer)
    assert set(on_disk(tmp_path)) == {2, 3, 4, 5}


@on_both
def test_ranks_that_are_at_no_common_step_have_checkpoints(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        ex = exchange(context, consistency=SSP(3))
        with Checkpointer(ex, tmp_path, every=1) as ckpt:
            for step in range(1 + context.rank):
                ex.step(drawn(step))
            ckpt.after(1)
        context.barrier()
        found = restore(ex, tmp_path)
        assert found is not None
        assert found.step == 1
        ex.close()

    run_threads(2, body)
