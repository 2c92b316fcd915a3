"""The tests that make near chooses (tests/near.py), and what make map notes and writes (tests/cover.py, covered.py)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cover
import covered
import near
import pytest
from covered import Case, Map
from hypothesis import given
from hypothesis import strategies as st

FILES = [f"csrc/engine/{letter}.c" for letter in "abcdefgh"]
CASES = st.lists(
    st.tuples(st.booleans(), st.floats(0, 30), st.floats(0, 30), st.frozensets(st.sampled_from(FILES), min_size=1)),
    min_size=1,
    max_size=20,
)


def map_of(*cases: Case, shared: tuple[Case, ...] = ()) -> Map:
    return Map({case.name: case for case in cases}, {case.name: case for case in shared})


def case(name: str, *files: str, seconds: float = 1.0, needs: tuple[str, ...] = ()) -> Case:
    return Case(name, seconds, seconds, frozenset(files), needs)


@given(rows=CASES, changed=st.lists(st.sampled_from(FILES), unique=True), seconds=st.floats(0, 100))
def test_the_budget_is_kept_and_each_file_has_its_best_test(
    rows: list[tuple[bool, float, float, frozenset[str]]], changed: list[str], seconds: float
) -> None:
    cases = [
        Case(f"tests/test_it.py::test_{i}" if is_python else f"test_{i}", wall, processor, files)
        for i, (is_python, wall, processor, files) in enumerate(rows)
    ]
    of = map_of(*cases)
    picked, left_out, bare = near.choose(changed, of, seconds, 2)
    assert near.estimate(picked, {}, 2) <= seconds or not picked
    touching = [each for each in cases if each.files & set(changed)]
    assert sorted(each.name for each in [*picked, *left_out]) == sorted(each.name for each in touching)
    assert bare == [path for path in changed if not any(path in each.files for each in cases)]
    if near.estimate(touching, {}, 2) <= seconds:
        assert not left_out
    kinds = [(path, is_python) for path in changed for is_python in (False, True)]
    mine = [[each for each in touching if path in each.files and each.is_python == kind] for path, kind in kinds]
    best = [min(some, key=lambda each: (-share(each, changed) / (1 + each.wall), each.name)) for some in mine if some]
    if near.estimate({each.name: each for each in best}.values(), {}, 2) <= seconds:
        assert all(each in picked for each in best)


def share(case: Case, changed: list[str]) -> float:
    return len(case.files & set(changed)) / len(case.files)


def test_the_most_telling_come_first() -> None:
    few, many = case("test_few", FILES[0]), case("test_many", *FILES)
    python = case("tests/test_it.py::test_it", *FILES[:2])
    slow = case("test_slow", FILES[0], FILES[1], seconds=500)
    picked, left_out, bare = near.choose([FILES[0], "csrc/engine/new.c"], map_of(many, slow, few, python), 60, 2)
    assert picked == [few, python, many]
    assert left_out == [slow]
    assert bare == ["csrc/engine/new.c"]


def test_a_shared_fixture_counts_once_and_for_each_of_its_tests() -> None:
    shared = case("tests/test_it.py jobs", FILES[0], seconds=40)
    tests = [case(f"tests/test_it.py::test_{i}", needs=(shared.name,)) for i in range(3)]
    of = map_of(*tests, shared=(shared,))
    assert near.choose([FILES[0]], of, 60, 2)[0] == tests
    assert near.estimate(tests, of.shared, 1) == near.START + 43
    assert near.choose([FILES[0]], of, 40, 2)[0] == []


def test_the_tests_of_a_group_run_one_after_the_other() -> None:
    apart = [case(f"tests/test_it.py::test_{i}", seconds=3) for i in range(3)]
    group = [case(each.name, seconds=3, needs=("@group torch",)) for each in apart]
    assert near.estimate(apart, {}, 2) == near.START + 4.5
    assert near.estimate(group, {}, 2) == near.START + 9


def test_a_changed_test_file_runs_whole() -> None:
    cases = [case("tests/test_it.py::test_a", FILES[0]), case("tests/test_it.py::test_b"), case("test_c", FILES[0])]
    changed = ["tests/test_it.py", "tests/c/test_c.c"]
    assert near.choose(changed, map_of(*cases), 60, 2) == (cases, [], [])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project: a header that a header includes, a module without functions, and their users."""
    texts = {
        "csrc/engine/a.h": '#include "engine/b.h"\n',
        "csrc/engine/b.h": "",
        "csrc/engine/a.c": '#include "engine/a.h"\n',
        "csrc/engine/c.c": '# include "b.h"\n',
        "tests/c/test_d.c": '#include "engine/a.h"\n',
        "hpcomm/values.py": "",
        "hpcomm/user.py": "from hpcomm.values import ONE\n",
        "hpcomm/part/inner.py": "from .. import _fast, user\nfrom ..values import ONE\n",
        "hpcomm/_fast.c": "",
        "hpcomm/_fast_calls.c": "",
        "README.md": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", "-C", str(root), *who, *words], capture_output=True, text=True, check=True).stdout


def test_what_has_changed_since_the_branch_left_main(tree: Path) -> None:
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "all")
    left = git(tree, "rev-parse", "HEAD").strip()
    git(tree, "switch", "-q", "-c", "mine")
    (tree / "csrc/engine/a.h").write_text("")
    git(tree, "commit", "-q", "-a", "-m", "mine")
    (tree / "csrc/engine/c.c").unlink()
    (tree / "csrc/engine/new.c").touch()
    assert near.base(tree) == left
    assert near.changed_since(left, tree) == ["csrc/engine/a.h", "csrc/engine/c.c", "csrc/engine/new.c"]
    assert near.changed_since("HEAD", tree) == ["csrc/engine/c.c", "csrc/engine/new.c"]


def test_a_header_counts_for_the_files_that_include_it(tree: Path) -> None:
    cases = [case("test_a", "csrc/engine/a.c"), case("test_c", "csrc/engine/c.c"), case("test_d", "csrc/engine/z.c")]
    for changed, names in (
        ("csrc/engine/a.h", ["test_a", "test_d"]),
        ("csrc/engine/b.h", ["test_a", "test_c", "test_d"]),
    ):
        picked, _, bare = near.choose([changed], map_of(*cases), 60, 2, tree)
        assert sorted(each.name for each in picked) == names
        assert not bare


def test_a_module_without_functions_counts_for_those_that_import_it(tree: Path) -> None:
    user = case("tests/test_it.py::test_it", "hpcomm/user.py")
    inner = case("tests/test_it.py::test_inner", "hpcomm/part/inner.py")
    for changed, tests in (
        ("hpcomm/values.py", [inner, user]),
        ("hpcomm/_fast.c", [inner]),
        ("hpcomm/_fast_calls.c", [inner]),
        ("hpcomm/user.py", [user]),
    ):
        assert near.choose([changed], map_of(user, inner), 60, 2, tree) == (tests, [], [])


def test_a_file_of_a_subject_has_the_tests_of_the_subject(tree: Path) -> None:
    demo = case("tests/test_demo.py::test_it")
    assert near.choose(["README.md", "docs/index.md"], map_of(demo), 60, 2, tree) == ([demo], [], [])


def test_the_map_reads_as_it_was_written() -> None:
    shared = case("tests/test_it.py jobs", FILES[7], seconds=2.25)
    tests = [
        case("tests/test_it.py::test_it", *FILES[2:5], needs=(shared.name,)),
        case("test_c"),
        case("test_d", *FILES),
    ]
    of = map_of(*tests, shared=(shared,))
    assert Map.read(of.text()) == of
    assert map_of(*reversed(tests), shared=(shared,)).text() == of.text()


def test_tests_of_a_subject_that_did_not_run_keep_their_places() -> None:
    shared = case("tests/test_bench.py right", FILES[7])
    bench = case("tests/test_bench.py::test_it", needs=(shared.name,))
    before = map_of(bench, case("tests/test_it.py::test_gone"), shared=(shared, case("tests/test_it.py jobs")))
    new = map_of(case("tests/test_it.py::test_it"))
    root = covered.ROOT
    assert new.with_kept(before, [], root) == new
    assert new.with_kept(before, ["bench"], root) == map_of(bench, *new.cases.values(), shared=(shared,))
    again = map_of(case("tests/test_bench.py::test_it", FILES[0], seconds=9.0))
    assert again.with_kept(before, ["bench"], root).cases == again.cases


def test_a_run_that_hangs_is_ended() -> None:
    assert near.bounded([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ), 60) == 3
    assert near.bounded([sys.executable, "-c", "import signal; signal.pause()"], dict(os.environ), 0.1) == 1


def test_a_test_that_is_gone_is_not_asked_for() -> None:
    assert near.is_there(case("tests/test_near.py::test_a_test_that_is_gone_is_not_asked_for"), covered.ROOT)
    assert not near.is_there(case("tests/test_near.py::test_gone"), covered.ROOT)
    assert not near.is_there(case("test_gone"), covered.ROOT)


# ---- what is noted -------------------------------------------------------------------------------------------------


def test_files_of_a_process_that_is_killed_stay(tmp_path: Path) -> None:
    """Each test has files of its own, a fixture within it too."""
    (tmp_path / "hpcomm").mkdir()
    (tmp_path / "hpcomm/module.py").write_text("class A:\n    pass\n\ndef function():\n    pass\n")
    (tmp_path / "hpcomm/imported.py").write_text("class A:\n    pass\n")
    body = f"""
import os, sys
sys.path[:0] = [{os.path.dirname(cover.__file__)!r}, {str(tmp_path / "hpcomm")!r}]
import cover
cover.ROOT, cover.OURS = {str(tmp_path)!r}, ({str(tmp_path)!r} + "/",)
with cover.of("a::test", ["a jobs"], lambda: 0.0):
    import imported, module
    with cover.of("a jobs", [], lambda: 0.0):
        module.function()
with cover.of("b::test", [], lambda: 0.0):
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        module.function()
        os.kill(os.getpid(), 9)
with cover.of("c::test", [], lambda: 0.0):
    os._exit(3)
"""
    env = {**os.environ, cover.FOLDER: str(tmp_path), cover.VARIABLE: ""}
    ended = subprocess.run([sys.executable, "-c", body], env=env, timeout=60, check=False)
    assert ended.returncode == 3
    (tmp_path / "library.map").touch()
    cases, shared = covered.of_functions(tmp_path / "library", tmp_path)
    assert cases["a::test"].needs == ("a jobs",)
    assert not cases["a::test"].files
    assert shared["a jobs"].files == {"hpcomm/module.py"}
    assert cases["b::test"].files == {"hpcomm/module.py"}
    assert "c::test" not in cases  # it came to no end


def test_functions_of_a_process_that_is_killed_stay(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    folder = tmp_path / "program.dir/csrc"
    folder.mkdir(parents=True)
    for name, text in {
        "main": "#include <signal.h>\nint called(void);\nint main(void) { called(); return raise(SIGKILL); }\n",
        "called": "int called(void) { return 1; }\n",
        "idle": "int idle(void) { return 1; }\n",
        "cover": (covered.ROOT / "tests/c/cover.c").read_text(encoding="utf-8"),
    }.items():
        (folder / f"{name}.c").write_text(text)
    names = ("main", "called", "idle", "cover")
    flags = ["-finstrument-functions", "-falign-functions=16"]
    for name in names:
        command = [compiler, *flags, "-c", f"program.dir/csrc/{name}.c", "-o", f"program.dir/csrc/{name}.c.o"]
        subprocess.run(command, cwd=tmp_path, check=True)
    objects = [f"program.dir/csrc/{name}.c.o" for name in names]
    subprocess.run([compiler, *objects, "-Wl,-Map=program.map", "-o", "program"], cwd=tmp_path, check=True)
    prefix = str(tmp_path / "first")
    ended = subprocess.run([tmp_path / "program"], env={"HPC_COVER": prefix}, timeout=60, check=False)
    assert ended.returncode == -9
    tables = {"first": Path(f"{prefix}.c").read_bytes()}
    assert covered.files_of(tmp_path / "program", tables) == {"first": {"csrc/main.c", "csrc/called.c"}}
    assert subprocess.run([tmp_path / "program"], env={}, timeout=60, check=False).returncode == -9
