"""examples/cpp/train_local_steps.cpp: its ranks end with the weights that NumPy finds without an exchange."""

from pathlib import Path

import mpi
import numpy as np
import pytest
from numpy.typing import NDArray
from test_cpp import ROOT, STRICT, info, run, tool

Array = NDArray[np.float64]

STEPS = 94
pytestmark = pytest.mark.xdist_group("group cpp local steps")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled against the installed library with the MPI in use."""
    wrapper = Path(mpi.mpirun()[0]).parent / "mpicxx"
    if not wrapper.exists():
        pytest.skip(f"the MPI in {wrapper.parent} has no mpicxx: its development package is missing")
    tool("c++")
    program = tmp_path_factory.mktemp("cpp") / "train_local_steps"
    library = info("--cmake-dir").parents[1] / "libhpcomm.so.0"
    flags = ["-std=c++17", *STRICT, "-I", str(info("--include-dir")), str(library), f"-Wl,-rpath,{library.parent}"]
    run(wrapper, ROOT / "examples" / "cpp" / "train_local_steps.cpp", *flags, "-o", program)
    return program


def by_numpy(first: Array, ranks: int, every: int, delay: int, mix: float) -> Array:
    """The weights after STEPS steps and a sync, by one process for all ranks."""
    fragments, points = [slice(0, 64), slice(64, 97)], np.array_split(-3 + 6 * (np.arange(120) + 0.5) / 120, ranks)
    shared: Array = first.copy()
    momentum, local = np.zeros_like(first), [first.copy() for _ in range(ranks)]
    under_way: dict[int, tuple[int, Array]] = {}

    def begin(k: int, step: int) -> None:
        part = fragments[k]
        update = shared[part] - np.mean([own[part] for own in local], axis=0)
        momentum[part] = 0.9 * momentum[part] + update
        under_way[k] = step, shared[part] - 0.7 * (update + 0.9 * momentum[part])

    def take(k: int, mix: float) -> None:
        part = fragments[k]
        shared[part] = under_way.pop(k)[1]
        for own in local:
            own[part] = (1 - mix) * own[part] + mix * shared[part]

    for step in range(1, STEPS + 1):
        for own, x in zip(local, points, strict=True):
            slopes, biases, out, bias = np.split(own, [32, 64, 96])
            units = np.tanh(np.outer(x, slopes) + biases)
            error = (units @ out + bias - np.sin(2 * x)) / len(x)
            back = np.outer(error, out) * (1 - units**2)
            own[:] -= 0.1 * np.concatenate([x @ back, back.sum(0), error @ units, [error.sum()]])
        for k in [k for k, (begun, _) in under_way.items() if step - begun == delay]:
            take(k, mix)
        for k in [k for k in range(2) if step % every == (k + 1) * every // 2 % every]:
            begin(k, step)
            if delay == 0:
                take(k, mix)
    for k in list(under_way):
        take(k, mix)
    for k in range(2):
        begin(k, STEPS)
        take(k, 1)
    return shared


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "transport", "every", "delay", "mix"),
    [(3, "tcp", 10, 7, 0.5), (2, "shm", 5, 2, 1.0), (3, "shm", 4, 0, 1.0)],
)
def test_local_steps_find_the_weights_of_one_process(
    tmp_path: Path, trainer: Path, ranks: int, transport: str, every: int, delay: int, mix: float
) -> None:
    how = ["--transport", transport, "--every", str(every), "--delay", str(delay), "--mix", str(mix)]
    mpirun: list[str | Path] = [*mpi.mpirun(), "-n", str(ranks), trainer, *how]
    run(*mpirun, "--steps", "0", "--weights", tmp_path / "first")
    said = run(*mpirun, "--steps", str(STEPS), "--weights", tmp_path / "last")
    first, last = np.loadtxt(tmp_path / "first"), np.loadtxt(tmp_path / "last")
    turns = sum(step % every == turn % every for step in range(1, STEPS + 1) for turn in (every // 2, every))
    assert f"the same weights on all ranks ({ranks}); {turns + 2} updates of a fragment" in said
    expected = by_numpy(first, ranks, every, delay, mix)
    assert np.abs(expected - first).max() > 0.1
    np.testing.assert_allclose(last, expected, rtol=0, atol=1e-4)


@pytest.mark.full
def test_a_delay_as_long_as_a_cycle_is_refused(trainer: Path) -> None:
    ended = mpi.command(*mpi.mpirun(), "-n", "2", trainer, "--every", "5", "--delay", "5")
    assert ended.returncode != 0
    assert "--delay is 5; must be 0 or more, and below --every, which is 5" in ended.stderr
