"""HPCOMM_TIMELINE: spans of the right rank that nest, waits that name who was late, and what a kill leaves."""

import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import mpi
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import Left, run_threads

import hpcomm
from hpcomm import _core, cli

SIZE = 3
LATE = 2


def await_waits_for(rank: int, op: str, n: int) -> None:
    """Until n ranks of a job of SIZE are seen to wait for this rank alone in op; the runs of others are other jobs."""
    mine = {shown.job for shown in _core.jobs(5.0).ranks if shown.pid == os.getpid()}
    while True:
        waits = [wait for shown in _core.jobs(5.0).ranks if shown.job in mine for wait in shown.waits]
        if sum(wait.ranks == (rank,) and wait.op == op for wait in waits) == n:
            return


def train(steps: int, kill: bool) -> float:
    """Steps in which rank LATE pushes when all others wait for it; the first parameter at the end."""
    with hpcomm.init(mpi.world()) as context:
        params = {"fc": np.zeros(5000, np.float32), "conv/1": np.zeros((3, 4), np.float32)}
        ex = hpcomm.parameter_hub(context, params, rule=hpcomm.SGD(lr=1.0))
        context.barrier()
        grads = {"fc": np.ones(5000, np.float32), "conv/1": np.ones((3, 4), np.float32)}
        for _ in range(steps):
            if context.rank == LATE:
                await_waits_for(LATE, "wait", SIZE - 1)
            with context.span("compute"):
                ex.push_pull("fc", grads["fc"])
            ex.step(grads)
        if kill:
            context.barrier()
            if context.rank == LATE:
                await_waits_for(LATE, "barrier", SIZE - 1)
                os.kill(os.getpid(), signal.SIGKILL)
            context.barrier()
        return float(ex.params["fc"][0])


def events(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(found, list)
    return found


def spans(all_events: list[dict[str, Any]]) -> Iterator[tuple[tuple[int, int], list[dict[str, Any]]]]:
    """The spans of each thread by their starts, longest first."""
    tracks = defaultdict(list)
    for event in all_events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for thread, track in tracks.items():
        yield thread, sorted(track, key=lambda event: (event["ts"], -event["dur"]))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timeline") / "trace.json"
    values = mpi.spawn(SIZE, train, 2, False, env={"HPCOMM_TIMELINE": str(path)}).values
    assert values == [-4.0] * SIZE
    return path


def merged(path: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli.main, ["timeline", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    return events(path)


def test_each_rank_writes_its_own_file(traced: Path) -> None:
    for rank in range(SIZE):
        own = events(traced.with_name(f"trace.rank{rank}.json"))
        assert {event["pid"] for event in own} == {rank}
        names = [event["args"]["name"] for event in own if event["name"] == "process_name"]
        assert len(names) == 1
        assert names[0].startswith(f"rank {rank} of {SIZE} on ")
        assert any(event["name"] == "thread_name" for event in own)


def test_spans_nest(traced: Path) -> None:
    for thread, track in spans(merged(traced)):
        open_until: list[float] = []
        for span in track:
            while open_until and open_until[-1] <= span["ts"] + 1e-4:
                open_until.pop()
            end = span["ts"] + span["dur"]
            assert not open_until or end <= open_until[-1] + 2e-3, f"{span} of {thread} crosses what it is in"
            open_until.append(end)


def test_calls_and_rows_are_there(traced: Path) -> None:
    found = merged(traced)
    for rank in range(SIZE):
        own = [event for event in found if event["pid"] == rank and event["ph"] == "X"]
        names = [(event["cat"], event["name"]) for event in own]
        assert names.count(("trainer", "compute")) == 2
        assert names.count(("trainer", "step")) == 2
        assert {("call", "push_pull"), ("call", "wait"), ("call", "barrier"), ("call", "close")} <= set(names)
        keys = {event["args"].get("key") for event in own if event["name"] == "push_pull"}
        assert keys == {"fc", "conv/1"}
    folds = [event for event in found if event.get("cat") == "fold"]
    elements = sum(event["args"]["bytes"] for event in folds if event["name"] == "fc") // 4
    assert elements == 5000 * 4  # each of four pushes once, by whoever owns it
    assert {event["name"] for event in folds} == {"fc", "conv/1"}
    assert all(event["args"]["rows"] >= 1 for event in folds)


def test_waits_name_the_straggler(traced: Path) -> None:
    found = merged(traced)
    for rank in range(SIZE):
        waits = [event for event in found if event["pid"] == rank and event.get("cat") == "wait"]
        late = [event for event in waits if event["name"] == f"wait for {LATE}" and event["args"]["op"] == "wait"]
        assert bool(late) == (rank != LATE)
        assert all(event["args"]["ranks"] == [LATE] for event in late)


def test_ranks_share_a_clock(traced: Path) -> None:
    """The last wait of rank 0 for LATE ends after LATE has begun the push_pull that was waited for."""
    found = merged(traced)
    wait_end = max(
        event["ts"] + event["dur"]
        for event in found
        if event["pid"] == 0 and event["name"] == f"wait for {LATE}" and event["args"]["op"] == "wait"
    )
    pushes = [event["ts"] for event in found if event["pid"] == LATE and event["name"] == "compute"]
    assert wait_end > min(pushes)


def test_waits_are_summed(traced: Path) -> None:
    result = CliRunner().invoke(cli.main, ["timeline", str(traced), "--waits"], catch_exceptions=False)
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()[2:]] == ["0", "1", "2"]


def test_what_a_killed_rank_has_done_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    ended = mpi.spawn(SIZE, train, 1, True, env={"HPCOMM_TIMELINE": str(path)}, check=False)
    assert ended.codes[LATE] == -signal.SIGKILL
    result = CliRunner().invoke(cli.main, ["timeline", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert f"trace.rank{LATE}.json has no end: rank {LATE} still runs or was killed" in result.output
    found = events(path)
    assert {event["pid"] for event in found} == {0, 1, 2}
    names = {event["name"] for event in found if event["pid"] == LATE and event["ph"] == "X"}
    assert {"init", "exchange"} <= names


def test_the_rank_may_be_placed(tmp_path: Path) -> None:
    with hpcomm.init(timeline=tmp_path / "%r-of-job.json", transport="shm") as context:
        context.barrier()
    assert [path.name for path in tmp_path.iterdir()] == ["0-of-job.json"]
    result = CliRunner().invoke(cli.main, ["timeline", str(tmp_path / "%r-of-job.json"), "-o", str(tmp_path / "all")])
    assert result.exit_code == 0
    assert len(events(tmp_path / "all")) > 3


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        hpcomm.ConfigError, match=r"timeline \".*/no/t.rank0.json\" of rank 0 cannot be written: No such"
    ):
        hpcomm.init(timeline=tmp_path / "no" / "t.json")


def test_what_is_no_timeline_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    result = CliRunner().invoke(cli.main, ["timeline", str(path)])
    assert result.exit_code == 2
    assert "no timelines of" in result.output
    (tmp_path / "t.rank0.json").write_text("[\n1\n]", encoding="utf-8")
    result = CliRunner().invoke(cli.main, ["timeline", str(path)])
    assert result.exit_code == 2
    assert "is no timeline of hpcomm" in result.output


def write_file(path: Path, rank: int, job: str, **fields: Any) -> None:
    """A rank's timeline with one span, a second after its beginning."""
    clock: dict[str, Any] = {"size": 2, "host": "h", "boot": "a", "monotonic_us": 1e6, "realtime_us": 5e9}
    clock |= {"process": str(rank)} | fields
    start = clock["monotonic_us"] + 1e6
    lines = [
        {"name": "hpcomm_clock", "ph": "M", "pid": rank, "tid": 0, "args": clock},
        {"name": "x", "cat": "call", "ph": "X", "ts": start, "dur": 1, "pid": rank, "tid": 0, "args": {}},
    ]
    if job:
        lines.append({"name": "hpcomm_job", "ph": "M", "pid": rank, "tid": 0, "args": {"job": job}})
    text = "[\n" + "".join(json.dumps(line) + ",\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def test_hosts_are_aligned_by_their_wall_clocks(tmp_path: Path) -> None:
    """Two files as of hosts whose monotonic clocks are 100 s apart."""
    for rank, boot in enumerate(("a", "b")):
        write_file(tmp_path / f"t.rank{rank}.json", rank, "j", boot=boot, monotonic_us=1e6 + 1e8 * rank)
    found = [event for event in merged(tmp_path / "t.json") if event["ph"] == "X"]
    assert [(event["pid"], event["ts"]) for event in found] == [(0, 2e6), (1, 2e6)]


def test_files_of_earlier_jobs_are_left_out(tmp_path: Path) -> None:
    """Of a job of four ranks, one of two that followed it 10 s later, and what was cut short before all ranks met."""
    early, late = 5e9, 5e9 + 1e7
    for rank in range(2):
        write_file(tmp_path / f"t.rank{rank}.json", rank, "late", realtime_us=late)
    write_file(tmp_path / "t.rank0-2.json", 0, "later context", realtime_us=late + 5e6)  # of the same process
    write_file(tmp_path / "t.rank2.json", 2, "early", realtime_us=early, size=4, process="early 2")
    write_file(tmp_path / "t.rank2-2.json", 1, "early context", realtime_us=early, process="early 2")
    write_file(tmp_path / "t.rank3.json", 3, "", realtime_us=early, process="early 3")
    write_file(tmp_path / "t.rank4.json", 4, "", realtime_us=late, process="late 4")
    result = CliRunner().invoke(cli.main, ["timeline", str(tmp_path / "t.json")], catch_exceptions=False)
    assert result.exit_code == 0
    left_out = [line.split("/")[-1].split()[0] for line in result.output.splitlines() if "of an earlier job" in line]
    assert left_out == ["t.rank2-2.json", "t.rank2.json", "t.rank3.json"]
    assert sorted(event["pid"] for event in events(tmp_path / "t.json")) == [0, 1, 4, 6]


def survive(context: hpcomm.Context, die: Callable[[], Any]) -> None:
    """Rank 0 dies while the others wait for it; then the one that was rank 1 waits for the one that was rank 2."""
    if context.rank == 0:
        await_waits_for(0, "barrier", SIZE - 1)
        die()
        return
    with suppress(hpcomm.PeerFailed):
        context.barrier()
    with context.shrink() as fresh:
        if fresh.rank == 1:
            await_waits_for(1, "barrier", 1)
        fresh.barrier()


def shrink() -> None:
    with hpcomm.init(mpi.world()) as context:
        survive(context, lambda: os.kill(os.getpid(), signal.SIGKILL))


def shrink_thread(context: hpcomm.Context) -> None:
    survive(context, lambda: context.abort("enough"))
    raise Left


def check_waits_after_shrink(path: Path) -> None:
    """One table for each context; in the second one ranks 0 and 1 are those that were 1 and 2."""
    result = CliRunner().invoke(cli.main, ["timeline", str(path), "--waits"], catch_exceptions=False)
    lines = [line.split() for line in result.output.splitlines() if "has no end" not in line]
    assert [" ".join(line[-4:]) for line in (lines[0], lines[5])] == ["context 1 of 2", "context 2 of 2"]
    assert [line[0] for line in lines[2:5]] == ["0", "1", "2"]
    assert "-" not in (lines[3][1], lines[4][1])  # a wait of 0.000 s is one
    assert lines[7][:3] == ["0", "(first", "1)"]
    assert lines[7][4] != "-"
    assert lines[8][:3] == ["1", "(first", "2)"]


def test_contexts_of_ranks_that_are_threads_are_kept_apart(tmp_path: Path) -> None:
    run_threads(SIZE, shrink_thread, timeline=tmp_path / "t.json")
    check_waits_after_shrink(tmp_path / "t.json")


def test_contexts_of_a_job_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    ended = mpi.spawn(SIZE, shrink, env={"HPCOMM_TIMELINE": str(path)}, check=False)
    assert ended.codes == [-signal.SIGKILL, 0, 0], ended.err
    found = merged(path)
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    ranks = [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)]
    assert [names[pid].partition(" on ")[0] for pid in range(5)] == [f"rank {rank} of {size}" for rank, size in ranks]
    order = {event["pid"]: event["args"]["sort_index"] for event in found if event["name"] == "process_sort_index"}
    assert order == {pid: pid for pid in range(5)}

    check_waits_after_shrink(path)

    with hpcomm.init(timeline=path) as alone:
        alone.barrier()
    assert {event["pid"] for event in merged(path)} == {0}
