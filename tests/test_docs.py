"""The pages: their Python runs as printed, their commands exist, their tables are whole, and the index has them all.

The ```python blocks of a page run in its order and share their names, which begin with those of taken_for_granted.py.
A block of ```python ranks=4 runs with four ranks: the blocks of a page with that number are a job of their own.
"""

import ast
import os
import re
import runpy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import mpi
import pytest

import hpcomm
from hpcomm import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
FENCE = re.compile(r"^```python(?: ranks=(\d+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Blocks that do not run here, by a part of their text, and why.
LEFT_OUT = {
    "from cluster.hosts import": "hosts need root or user namespaces; tests/cluster has its like",
    "hpcomm.connect_service()": "it needs a hub; tests/test_service.py has its like",
    'servers="hub", racks=': "it needs hubs; tests/test_service_racks.py has its like",
    "allgather_objects(bool(ctx.notices))": "it needs a hub; tests/test_service_saving.py has its like",
    "ex.put_back(np.load": "it needs a hub; tests/test_service_saving.py has its like",
    "ctx.bandwidth(": "it probes links between hosts; tests/cluster has its like",
}


# ---- Python --------------------------------------------------------------------------------------------------------


def blocks(page: str) -> Iterator[tuple[int, int, str]]:
    """The lines before each block, its ranks, and its code."""
    for found in FENCE.finditer(PAGES[page]):
        if not any(part in found[2] for part in LEFT_OUT):
            yield PAGES[page].count("\n", 0, found.start(2)), int(found[1] or 1), found[2]


def jobs() -> dict[str, tuple[int, list[str]]]:
    """The ranks and pages of each job. Pages with torch share one for a number of ranks, as its import takes longer
    than they do."""
    found: dict[str, tuple[int, list[str]]] = {}
    for page in PAGES:
        has_torch = any("import torch" in code for _, _, code in blocks(page))
        for ranks in {ranks for _, ranks, _ in blocks(page)}:
            found.setdefault(f"{'torch' if has_torch else page} {ranks}", (ranks, []))[1].append(page)
    return found


JOBS = jobs()


def runs(ranks: int, pages: list[str], folder: str) -> None:
    """A rank's part: the blocks of these pages for so many ranks."""
    import taken_for_granted  # noqa: PLC0415 - which makes a context

    os.chdir(folder)
    for page in pages:
        names = dict(vars(taken_for_granted))
        for lines, wanted, code in blocks(page):
            if wanted == ranks:
                exec(compile("\n" * lines + code, str(ROOT / page), "exec"), names)


@pytest.mark.some(3)
@pytest.mark.parametrize("job", JOBS)
def test_python_runs_as_printed(job: str, tmp_path: Path) -> None:
    if job.startswith("torch ") and not find_spec("torch"):
        pytest.skip("torch is not installed; make test installs it where it can")
    ranks, pages = JOBS[job]
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(mpi.free_port())}
    shared["OMP_NUM_THREADS"] = "1"  # of torch, whose threads spin
    each = [{"RANK": str(rank), **shared} for rank in range(ranks)]
    ended = mpi.start(each, runs, ranks, pages, str(tmp_path), timeout=180)
    if "README.md" in pages:
        assert "ranks have found [1. 2. 3. 4. 5. 6. 7. 8.]" in ended.out
        assert "rank 0: loss 0." in ended.out


def test_every_block_is_run_or_left_out_for_a_reason() -> None:
    texts = "".join(PAGES.values())
    fences = re.findall(r"^ *```[ {]*py.*$", texts, re.MULTILINE)
    assert len(fences) == len(FENCE.findall(texts)), "a fence of Python is none that FENCE finds"
    for part in LEFT_OUT:
        assert sum(part in code for _, code in FENCE.findall(texts)) == 1, part


# ---- commands ------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """The page, the program and the words of each "hpcomm ..." or "make ..." in a line of code or between backticks."""
    for page, text in PAGES.items():
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"^    (.*)$", prose, re.MULTILINE) + re.findall(r"`([^`\n]+)`", prose):
            command = re.split(r"\s#|[;|>]|&&", line)[0]
            if found := re.match(r"(?:\w+=\S* |mpirun .*)*(hpcomm|make) (?!rank |has )([a-z-].*)", command):
                yield page, found[1], found[2].split()


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    seen, wrong = 0, []
    for page, program, words in commands():
        seen += 1
        if program == "make":
            wrong += [
                f"{page}: make {word}" for word in words if re.fullmatch(r"[a-z-]+", word) and word not in targets
            ]
            continue
        try:
            parse(cli.main, words)
        except click.NoSuchOption as error:
            wrong.append(f"{page}: hpcomm {' '.join(words)}: {error.format_message()}")
    assert seen > 40
    assert not wrong, "\n".join(wrong)


def parse(command: click.Command, words: list[str]) -> None:
    """Raises NoSuchOption for a subcommand or an option that command does not have. Files need not be there."""
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            raise click.NoSuchOption(words[0], f"there is no hpcomm {words[0]}")
        parse(found, words[1:])
        return
    try:
        command.make_context(command.name, words).close()
    except click.NoSuchOption:
        raise
    except (click.UsageError, click.exceptions.Exit):
        pass


# ---- the index -----------------------------------------------------------------------------------------------------


def test_the_index_has_every_page_once() -> None:
    rows = re.findall(r"^\| \[([\w.]+)\]\(([\w.]+)\) \|", PAGES["docs/index.md"], re.MULTILINE)
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert sorted(rows) == sorted((name, name) for name in there)


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/reference").glob("*.rst")))
    names = set(re.findall(r"^\.\. auto\w+:: hpcomm\.(?:consistency\.)?(\w+)$", pages, re.MULTILINE))
    assert set(hpcomm.__all__) - names - set(hpcomm.topology.__all__) == {"__version__"}
    assert ".. automodule:: hpcomm.graphs\n" in pages
    assert ".. automodule:: hpcomm.stats\n" in pages
    headers = re.findall(r"^\.\. header:: (.*)$", pages, re.MULTILINE)
    assert sorted(headers) == sorted(path.name for path in (ROOT / "csrc/include/hpcomm").iterdir())


def test_tables_are_whole() -> None:
    """The second line of a table has dashes. A row behind a blank line is text."""
    dashes = re.compile(r"\|(?: *:?-+:? *\|)+")
    for page, text in PAGES.items():
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE)]
        cut = [lines[0] for lines in tables if len(lines) < 2 or not dashes.fullmatch(lines[1])]
        assert cut == [], page


def test_every_row_kind_has_its_line() -> None:
    kinds = {path.name for path in (ROOT / "csrc/engine/owner").glob("kind_*.c")}
    assert set(re.findall(r"^\| `(kind_\w+\.c)` \|", PAGES["docs/architecture.md"], re.MULTILINE)) == kinds


def test_readme_contributing_and_ci_tell_one_number() -> None:
    ours, theirs = PAGES["CONTRIBUTING.md"], PAGES["README.md"]
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for command, elsewhere in {
        "make test": [re.search(r"make test .*at most (\d+) minutes", theirs)],
        ".ci/run": [re.search(r"\.ci/run .*in at most (\d+) minutes", text) for text in (theirs, script)],
        ".ci/run --full": [
            re.search(r"--full runs .*in at most (\d+)", theirs),
            re.search(r"--full .*?in at most (\d+)", script, re.DOTALL),
        ],
    }.items():
        limit = re.search(rf"^\| `{re.escape(command)}` \| (\d+) minutes", ours, re.MULTILINE)
        assert limit, command
        assert [found and found[1] for found in elsewhere] == [limit[1]] * len(elsewhere), command


# ---- sentences -----------------------------------------------------------------------------------------------------

REFUSALS = ("InvalidArgument", "NotSupported", "ConfigError")


def words(node: ast.expr) -> str:
    """The text of an expression, with "…" for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(words, node.values))
    if isinstance(node, ast.BinOp):
        return words(node.left) + words(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


def refusals(folder: str) -> Iterator[str]:
    """The sentences by which the modules of a folder refuse something."""
    for path in sorted((ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REFUSALS:
                yield words(node.args[0])


def test_every_refusal_of_torch_is_listed() -> None:
    listed = PAGES["docs/torch.md"].partition("### All sentences")[2].partition("```text\n")[2].partition("```")[0]
    told = "\n".join(sorted(set(refusals("hpcomm/torch")), key=str.lower))
    assert listed.strip() == told, f"docs/torch.md, All sentences, must be:\n{told}"


# ---- the chart -----------------------------------------------------------------------------------------------------


def test_the_chart_has_the_measured_figures(tmp_path: Path) -> None:
    """The chart of README.md is docs/chart.py's drawing of the table in docs/measured.md."""
    for name in ("chart.py", "measured.md"):
        (tmp_path / name).write_bytes((ROOT / "docs" / name).read_bytes())
    runpy.run_path(str(tmp_path / "chart.py"), run_name="__main__")
    assert (tmp_path / "ddp.svg").read_text(encoding="utf-8") == (ROOT / "docs/ddp.svg").read_text(encoding="utf-8")
