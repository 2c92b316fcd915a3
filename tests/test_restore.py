"""restore: which checkpoint the ranks agree to go on from, by any plan, and what they leave out."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from test_checkpointer import exchange, flip, saved, train
from told import logs

from hpcomm import Checkpointer, CheckpointError, Context, ParameterServer, latest, restore


@pytest.mark.parametrize(
    ("n", "other"),
    [
        (3, {}),
        (3, {"chunk_bytes": 64}),
        (2, {"topology": ParameterServer("CC")}),
        (4, {"topology": ParameterServer("NCS", servers=[3]), "chunk_bytes": 1 << 20}),
    ],
    ids=["the same plan", "other chunks", "fewer ranks", "more ranks"],
)
@on_both
def test_any_plan_goes_on_from_the_same_bits(tmp_path: Path, n: int, other: dict[str, Any]) -> None:
    want = saved(tmp_path, 3, 6)[0]

    def body(context: Context) -> None:
        with exchange(context, **other) as ex:
            found = restore(ex, tmp_path)
            assert found is not None
            assert (found.step, found.extra) == (6, {"last": 6})
            for name, value in ex.params.items():
                np.testing.assert_array_equal(value, want[name])
            steps = set(ex.state_dict()["row_step"])
            assert steps <= {6}
            if not ex.params:
                ex.serve()

    run_threads(n, body)


def restored(n: int, folder: Any, step: int | None = None) -> list[Any]:
    """What restore gives to each of n ranks, or the sentence that it raises; folder(rank) is the rank's directory."""

    def body(context: Context) -> Any:
        ex = exchange(context)
        try:
            found = restore(ex, folder(context.rank), step)
        except CheckpointError as wrong:
            return str(wrong)
        finally:
            context.barrier()
        return None if found is None else found.step

    return run_threads(n, body)


def test_a_damaged_file_sends_all_ranks_to_the_checkpoint_before(tmp_path: Path) -> None:
    saved(tmp_path, 3, 6)
    assert latest(tmp_path) == 6
    flip(tmp_path / "step-000006.rank-001.ckpt", 5000)
    with logs(r"step 6 is left out: .*step-000006\.rank-001\.ckpt is damaged"):
        assert latest(tmp_path) == 4
    with logs(r"step 6 is left out: rank 1: .*is damaged: its checksum"):
        assert restored(3, lambda rank: tmp_path) == [4, 4, 4]
    with logs("is damaged"):
        told = restored(3, lambda rank: tmp_path, step=6)
    assert told == [told[0]] * 3
    assert "no checkpoint of step 6 that every rank can load" in told[0]


def test_a_file_of_a_newer_format_is_refused_on_every_rank(tmp_path: Path) -> None:
    """Left out as a torn file is, it would let the job start anew, as if there were no checkpoint."""
    saved(tmp_path, 2, 2)
    for path in tmp_path.glob("*.ckpt"):
        whole = path.read_bytes()
        assert whole.startswith(b"hpcomm checkpoint 1\n")
        path.write_bytes(whole.replace(b" 1\n", b" 12\n", 1))
    told = restored(2, lambda rank: tmp_path)
    assert told == [told[0]] * 2
    assert "rank 0 cannot restore: " in told[0]
    assert "step-000002.rank-000.ckpt has format 12 of checkpoints, and this hpcomm reads format 1" in told[0]
    with pytest.raises(CheckpointError, match="has format 12"):
        latest(tmp_path)


def test_ranks_agree_on_what_all_of_them_have(tmp_path: Path) -> None:
    """Each has a directory of its own; the newest file of rank 2 has got lost, and half of a file lies about."""

    def body(context: Context) -> None:
        with exchange(context) as ex, Checkpointer(ex, tmp_path / str(context.rank), every=2, keep=3) as ckpt:
            train(ex, ckpt, 0, 6)

    run_threads(3, body)
    (tmp_path / "2" / "step-000006.rank-002.ckpt").unlink()
    half = tmp_path / "0" / "step-000008.rank-000.ckpt"
    half.write_bytes((tmp_path / "0" / "step-000006.rank-000.ckpt").read_bytes()[:4000])
    with logs(r"step-000008\.rank-000\.ckpt is torn"):
        assert restored(3, lambda rank: tmp_path / str(rank)) == [4, 4, 4]
    half.unlink()
    assert restored(3, lambda rank: tmp_path / str(rank), step=2) == [2, 2, 2]
    told = restored(3, lambda rank: tmp_path / str((rank + 1) % 3))  # the hosts have been mixed up
    assert told == [told[0]] * 3
    assert "was complete once: rank 0 has none; rank 1 has none; rank 2 has none" in told[0]


def test_ranks_that_see_other_files_agree(tmp_path: Path) -> None:
    """With fewer ranks each reads the files of all; rank 1 does not see the newest of one of them yet."""
    saved(tmp_path / "0", 3, 4)
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    (tmp_path / "1" / "step-000004.rank-002.ckpt").unlink()
    assert (latest(tmp_path / "0"), latest(tmp_path / "1")) == (4, 2)
    assert restored(2, lambda rank: tmp_path / str(rank)) == [2, 2]


def test_without_a_complete_checkpoint_the_training_starts_anew(tmp_path: Path) -> None:
    with logs() as told:
        assert restored(2, lambda rank: tmp_path / "nothing") == [None, None]
        assert latest(tmp_path / "nothing") is None
    assert not told
    saved(tmp_path, 2, 2)
    (tmp_path / "step-000002.rank-001.ckpt").rename(tmp_path / "step-000002.rank-001.ckpt.part")
    assert latest(tmp_path) is None
    with logs("none has been complete yet: starting anew"):
        assert restored(2, lambda rank: tmp_path) == [None, None]


def test_files_of_two_runs_are_no_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path / "a", 2, 2)
    saved(tmp_path / "b", 2, 2)
    shutil.copy(tmp_path / "a" / "step-000002.rank-001.ckpt", tmp_path / "b")
    assert latest(tmp_path / "a") == 2
    assert latest(tmp_path / "b") is None
    with logs("rank 0 has 2; rank 1 has 2"):
        assert restored(2, lambda rank: tmp_path / "b") == [None, None]
