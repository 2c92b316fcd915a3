"""What a short run of the Python tests leaves out. .ci/run --full leaves out nothing (HPC_TEST_MODES=all), nor does a
run of files by their names.

    @pytest.mark.full       takes long, and finds what other tests find sooner
    @pytest.mark.some(n)    n of its cases run; the seed chooses them, so that other ones run with each commit
    @pytest.mark.bench      runs when bench/ is not what its tests last passed on, which .ci/bench tells

A test by the fixture ranks_by runs each of its cases on one transport.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PASSED = ROOT / ".ci/bench"


def is_short(named: Iterable[str], modes: str) -> bool:
    """Whether a run of these files and folders leaves anything out."""
    return modes != "all" and all(Path(name).is_dir() for name in named)


def order(seed: int, name: str) -> int:
    """A number that looks random and that every worker of a run finds alike."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big")


def left_out(items: Iterable[pytest.Item], seed: int, *, bench: bool) -> set[pytest.Item]:
    """The tests that a short run does not need; bench: those of benchmarks run."""
    out: set[pytest.Item] = set()
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        params = dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.get_closest_marker("full") or (item.get_closest_marker("bench") and not bench):
            out.add(item)
        elif item.get_closest_marker("some"):
            cases[item.nodeid.partition("[")[0], ""].append(item)
        elif params.pop("ranks_by", None):
            cases[item.nodeid.partition("[")[0], repr(sorted(params.items(), key=str))].append(item)
    for alike in cases.values():
        mark = alike[0].get_closest_marker("some")
        most = mark.args[0] if mark else 1
        out.update(sorted(alike, key=lambda item: order(seed, item.nodeid))[most:])
    return out


def bench_digest(root: Path = ROOT) -> str:
    """Of the sources of the benchmarks and of their tests."""
    digest = hashlib.sha256()
    files = [path for path in (root / "bench").rglob("*") if path.suffix in (".py", ".c", ".h", ".json")]
    for path in sorted([*files, *(root / "tests").glob("test_bench*.py")]):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def bench_has_passed(root: Path = ROOT) -> bool:
    mark = root / PASSED.relative_to(ROOT)
    return mark.exists() and mark.read_text(encoding="utf-8").strip() == bench_digest(root)
