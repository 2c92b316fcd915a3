"""bench.papers and docs/evidence.md: the same items with the same commands, which exist; one is run."""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import papers

ROOT = Path(__file__).resolve().parent.parent
ITEMS = papers.items()
COLUMNS = 7


def rows() -> dict[str, list[list[str]]]:
    """The cells of docs/evidence.md, by paper."""
    found: dict[str, list[list[str]]] = {}
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        paper = next((key for key, title in papers.TITLES.items() if section.startswith(f"{title}:")), "")
        table = [line for line in section.splitlines() if line.startswith("|")][2:]
        found[paper] = [[cell.strip() for cell in line.strip("|").split(" |")] for line in table]
    return found


def test_the_page_has_a_row_for_each_item() -> None:
    for paper, cells in rows().items():
        assert [row[0] for row in cells] == [f"{each.item}: {each.title}" for each in ITEMS if each.paper == paper]


def test_no_row_is_empty() -> None:
    for cells in rows().values():
        for row in cells:
            assert len(row) == COLUMNS, row
            assert row[1], row
            assert row[2], row


def test_the_page_has_the_commands_of_the_list() -> None:
    for paper, cells in rows().items():
        for row, each in zip(cells, (each for each in ITEMS if each.paper == paper), strict=True):
            assert row[5] == (f"`python -m {each.command}`" if each.command else ""), each.item


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
