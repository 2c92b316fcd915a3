"""When .ci/run asks for a full run (tests/softroce/owed.py)."""

import shutil
import subprocess
from pathlib import Path

import pytest
from softroce import owed

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git; apt-get install git")


def git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def commit(root: Path, name: str, text: str) -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", name)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a commit that the full run has passed on."""
    git(tmp_path, "init", "-q")
    for name in ("csrc/transport/verbs/link.c", "csrc/engine/scheme.h", "csrc/control/net.c"):
        passed = commit(tmp_path, name, "one")
    commit(tmp_path, owed.FULL, f"{passed}\n")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["csrc/transport/verbs/link.c", "csrc/engine/scheme.h", "csrc/context/lane.c", "csrc/discipline/new.c"]
)
def test_is_owed_once_rdma_has_changed(tree: Path, name: str) -> None:
    passed = (tree / owed.FULL).read_text().strip()
    commit(tree, name, "two")
    assert owed.owed(tree) == f"softroce: full run owed since {passed}"


def test_is_owed_for_what_is_not_committed(tree: Path) -> None:
    (tree / "csrc/engine/scheme.h").write_text("two")
    assert "owed" in owed.owed(tree)


def test_is_not_owed_for_the_rest(tree: Path) -> None:
    assert owed.owed(tree) == ""
    commit(tree, "csrc/control/net.c", "two")
    assert owed.owed(tree) == ""


def test_is_owed_where_nothing_is_known(tree: Path) -> None:
    (tree / owed.FULL).write_text(f"{'0' * 40}\n")
    assert owed.owed(tree) == f"softroce: full run owed since {'0' * 40}, which is not here"
    (tree / owed.FULL).unlink()
    assert owed.owed(tree) == f"softroce: full run owed: {owed.FULL} names no commit"
