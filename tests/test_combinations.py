"""docs/combinations.md: it says of every combination what comes of it."""

import random
from pathlib import Path

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
@pytest.mark.parametrize("edges", list(combinations.EDGES))
def test_what_comes_of_a_combination(edges: str) -> None:
    """A refusal is by the page's sentence, and where there is none the parameters are right."""
    every = [one for one in combinations.product() if one.edges == edges]
    sample = random.Random(f"{SEED} {edges}").sample(every, SAMPLE)
    found = combinations.try_all(edges, sample)
    assert [(one, its, PAGE[one]) for one, its in zip(sample, found, strict=True) if its != PAGE[one]] == []
