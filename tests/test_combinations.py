"""docs/combinations.md: it says of every combination what comes of it."""

import random
from pathlib import Path
from typing import Any

import combinations
import pytest
from conftest import SEED

PAGE = combinations.read(Path(combinations.PAGE).read_text(encoding="utf-8"))
SAMPLE = 40  # of the 220 combinations of one kind of edges


def test_the_page_has_every_combination() -> None:
    assert set(PAGE) == set(combinations.product())


def test_nothing_on_the_page_is_a_fault() -> None:
    assert {found.what for found in PAGE.values()} == {"runs", "refused"}


def test_the_page_is_read_as_it_was_written() -> None:
    text = combinations.PAGE.read_text(encoding="utf-8")
    assert combinations.page(PAGE, text) == text


@pytest.mark.some(6)
@pytest.mark.parametrize("by", ["shm", "tcp", "loop"])
@pytest.mark.parametrize("edges", list(combinations.EDGES))
def test_what_comes_of_a_combination(edges: str, by: str) -> None:
    """A refusal is by the page's sentence, and where there is none the parameters are right."""
    every = [one for one in combinations.product() if one.edges == edges]
    sample = random.Random(f"{SEED} {edges} {by}").sample(every, SAMPLE)
    found = combinations.try_all(edges, sample, transport=by)
    assert [(one, its, PAGE[one]) for one, its in zip(sample, found, strict=True) if its != PAGE[one]] == []


def test_a_quorum_on_a_graph_takes_codecs_that_keep_nothing_back(transport: dict[str, Any]) -> None:
    """One neighbour may leave out what another takes, and then nothing has to go back into a residual."""
    ones = [combinations.Combination("a graph", "NOTIFY_ACK, quorum", codec, "apply") for codec in combinations.CODECS]
    found = combinations.try_all("a graph", ones, **transport)
    assert [one.codec for one, its in zip(ones, found, strict=True) if its.what == "runs"] == [
        *("float32", "float16", "bfloat16"),
        *("Float4", "Factors"),
    ]
