"""bench.papers, docs/evidence.md and bench/README.md: the same items, whose commands exist; one is run."""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import papers

ROOT = Path(__file__).resolve().parent.parent
ITEMS = papers.items()
COLUMNS = 5
PAGES = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("docs/evidence.md", "bench/README.md")}


def sections() -> dict[str, str]:
    """The text of docs/evidence.md, by paper."""
    parts = PAGES["docs/evidence.md"].split("\n## ")[1:]
    return {key: part for part in parts for key, title in papers.TITLES.items() if part.startswith(f"{title}:")}


def rows() -> dict[str, list[list[str]]]:
    """The cells of its tables of items, by paper."""
    found: dict[str, list[list[str]]] = {}
    for paper, text in sections().items():
        table = re.findall(r"^\|.*$", text.partition("\n### ")[0], re.MULTILINE)[2:]
        found[paper] = [[cell.strip() for cell in line.strip("|").split(" |")] for line in table]
    return found


def measured(paper: str) -> list[papers.Item]:
    """Its items but for the diagrams."""
    return [each for each in ITEMS if each.paper == paper and each.state != "diagram"]


def test_the_page_has_a_row_for_each_item() -> None:
    assert list(rows()) == list(papers.TITLES)
    for paper, cells in rows().items():
        assert [row[0] for row in cells] == [f"{each.item}: {each.title}" for each in measured(paper)]


def test_no_row_is_empty() -> None:
    for cells in rows().values():
        for row in cells:
            assert len(row) == COLUMNS, row
            assert row[1], row
            assert row[2], row


def test_the_page_names_each_diagram() -> None:
    for paper, text in sections().items():
        named = re.search(r"^Diagrams\b.*?(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        assert named, paper
        numbers = set(re.findall(r"\bS?\d+\b", re.sub(r"\([^)]*\)|`[^`]*`", "", named[0])))
        diagrams = {each.item.split()[-1] for each in ITEMS if each.paper == paper and each.state == "diagram"}
        assert diagrams <= numbers, paper


def test_the_page_of_benchmarks_names_each_program() -> None:
    for each in ITEMS:
        for command in filter(None, (each.command, each.quick)):
            module = shlex.split(command)[0]
            assert not module.startswith("bench.") or f"`{module}" in PAGES["bench/README.md"], command


def anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def test_an_item_leads_to_a_page_and_a_heading() -> None:
    for each in ITEMS:
        path, _, wanted = (each.where or "docs/evidence.md").partition("#")
        assert (ROOT / path).is_file(), each.where
        if wanted:
            titles = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert wanted in map(anchor, titles), each.where


@pytest.mark.parametrize("each", [each for each in ITEMS if each.command], ids=lambda each: f"{each.paper} {each.item}")
def test_what_a_command_names_exists(each: papers.Item) -> None:
    assert each.state in papers.STATES
    for command in filter(None, (each.command, each.quick)):
        module, *words = shlex.split(command)
        assert find_spec(module), command
        files = [word for word in words if word.startswith("tests/")]
        assert all((ROOT / file).is_file() for file in files), command
        if files and "-k" in words:
            names = re.findall(r"\w+", words[words.index("-k") + 1].replace(" or ", " ").replace(" and ", " "))
            text = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
            assert all(name in text for name in names), command


def test_the_list_is_told_and_one_item_of_it_is_run(capfd: pytest.CaptureFixture[str]) -> None:
    assert papers.main(["--paper", "asap", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)) == sum(each.paper == "asap" for each in ITEMS)
    assert papers.main(["--paper", "asap", "--figure", "2"]) == 1  # a star and a chain fail its checks
    assert "root_expander(25)" in capfd.readouterr().out
    assert papers.main(["--paper", "asap", "--figure", "3"]) == 2
    assert "measures nothing" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        papers.main(["--paper", "asap", "--figure", "99"])
    assert "ASAP has no figure 99: figure 1" in capfd.readouterr().err
