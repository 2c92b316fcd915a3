"""The saved state of jobs, in a folder of the hub. hpcomm/checkpoint/files.py writes and reads its files:

    NAMESPACE/JOB/run-G/exchange-K/step-N.rank-I.ckpt

A *run* of a job is what begins with a fresh start: G counts them, and a job that resumes goes on with the newest run.
K numbers the exchanges of a job in the order in which it makes them, N the saves of an exchange, and I the job's hubs.
A save counts if all hubs of the job have written it; the newest two are kept.
"""

import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoint import files
from ..errors import CheckpointError, ConfigError
from .config import Namespace

_RUN, _EXCHANGE = re.compile(r"run-(\d+)"), re.compile(r"exchange-(\d+)")
_SECTION = "shard"


class Saved(NamedTuple):
    """A job's saved state at this hub. step: the newest step of its exchanges. seconds: its age."""

    title: str
    step: int
    nbytes: int
    seconds: float


class Save(NamedTuple):
    """A save of an exchange, as far as this hub sees its files. size: how many hubs wrote it. ranks: the numbers of
    the hubs whose files this hub sees, as bits."""

    run: int
    number: int
    size: int
    ranks: int


class Store:
    """The folder, and the room that quotas leave in it. The threads of tenants use it side by side.

    Args:
        folder: where the namespaces' folders are.
        space_of: returns a namespace's quotas; None if the namespace is gone.
        count: counts an event by its name.
    """

    def __init__(self, folder: Path, space_of: Callable[[str], Namespace | None], count: Callable[[str], None]) -> None:
        self.folder, self._space_of, self._count = folder, space_of, count
        self._lock = threading.Lock()
        self._due: Counter[tuple[str, str]] = Counter()  # bytes that jobs are writing

    def job(self, space: str, name: str) -> "JobStore":
        return JobStore(self, space, name)

    def saved(self) -> list[Saved]:
        """Returns the saved state of all jobs, by title."""
        found = []
        for space in _folders(self.folder):
            for job in _folders(space):
                paths = list(_files(job))
                if paths:
                    found.append(_told(f"{space.name}/{job.name}", paths))
        return found

    def forget(self, space: str, name: str) -> None:
        """Removes a job's saved state. Raises ConfigError for a job without any."""
        folder = self.folder / space / name
        if not folder.is_dir():
            raise ConfigError(f"{space}/{name} has no saved state here")
        with self._lock:
            _remove_folder(folder)

    @contextmanager
    def room(self, space: str, name: str, nbytes: int) -> Iterator[None]:
        """Keeps room for a file of so many bytes while it is written. Raises ConfigError if a quota has none."""
        with self._lock:
            self._check(space, name, nbytes)
            self._due[space, name] += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._due[space, name] -= nbytes
                if not self._due[space, name]:
                    del self._due[space, name]

    def _check(self, space: str, name: str, nbytes: int) -> None:
        own, folder = self._space_of(space), self.folder / space
        most, disk = (0, 0) if own is None else (own.checkpoints, own.disk)
        others = {job.name for job in _folders(folder) if job.name != name and any(_files(job))}
        others |= {job for its, job in self._due if its == space and job != name}
        if len(others) >= most:
            self._count("refused: checkpoint quota")
            raise ConfigError(
                f"{space}/{name}: {len(others)} other jobs of namespace {space!r} have saved state, and {most} may: "
                "remove one by `hpcomm hub forget`"
            )
        used = sum(_size(path) for path in _files(folder))
        used += sum(due for (its, _), due in self._due.items() if its == space)
        if used + nbytes > disk:
            self._count("refused: disk quota")
            raise ConfigError(
                f"{space}/{name}: the save needs {nbytes} bytes, and namespace {space!r} has {max(disk - used, 0)} of "
                f"{disk} on disk left: remove saved state by `hpcomm hub forget`"
            )


class JobStore:
    """The saved state of one job."""

    def __init__(self, store: Store, space: str, name: str) -> None:
        self._store, self._space, self._name = store, space, name
        self.title = f"{space}/{name}"
        self._folder = store.folder / space / name

    @property
    def is_empty(self) -> bool:
        return not any(_files(self._folder))

    def newest_run(self) -> int:
        """Returns the number of the newest run that has a folder; 0: no run has one."""
        return max((run for run, _ in _numbered(self._folder, _RUN)), default=0)

    def newest_save(self, run: int, exchange: int) -> int:
        """Returns the number of the newest save of an exchange that has a file here; 0: no exchange has one."""
        return max((one.step for one in files.listed(self._of(run, exchange)) if one.whole), default=0)

    def saves(self, exchange: int, run: int, most: int) -> list[Save]:
        """Returns the newest saves of an exchange, the newest first.

        Args:
            run: the run that counts; 0: every run.
            most: at most so many.

        Raises:
            CheckpointError: a file is torn, or a newer hpcomm wrote it.
        """
        found: dict[tuple[int, int], Save] = {}
        for number, _ in _numbered(self._folder, _RUN):
            for one in files.listed(self._of(number, exchange)) if run in (0, number) else ():
                if one.whole and one.rank < 64:
                    old = found.get((number, one.step))
                    size = old.size if old is not None else files.label(one.path).size
                    ranks = (0 if old is None else old.ranks) | 1 << one.rank
                    found[number, one.step] = Save(number, one.step, size, ranks)
        return sorted(found.values(), reverse=True)[:most]

    def shards(self, run: int, exchange: int, number: int) -> list[Mapping[str, Any]]:
        """Returns the shards of a save in all files that this hub sees. Raises CheckpointError for a damaged file."""
        paths = [one.path for one in files.listed(self._of(run, exchange)) if one.whole and one.step == number]
        return [files.read(path)[1][_SECTION] for path in paths]

    def write(self, run: int, exchange: int, label: files.Label, shard: Mapping[str, Any], nbytes: int) -> None:
        """Writes this hub's file of a save; it has at most about nbytes. Saves before label.complete go first.

        Raises:
            ConfigError: a quota has no room for it.
            CheckpointError: the file cannot be written.
        """
        folder = self._of(run, exchange)
        self._remove(folder, label.rank, lambda number: number < label.complete)
        with self._store.room(self._space, self._name, nbytes):
            try:
                files.prepare(folder, label.rank)
                files.write(folder, label, {_SECTION: shard})
            except CheckpointError as failed:
                cause = failed.__cause__
                why = cause.strerror if isinstance(cause, OSError) else str(failed)
                raise CheckpointError(
                    f"{self.title}: the hub cannot write its file: {why}: this save is lost, those before it are kept"
                ) from failed

    def undo(self, run: int, exchange: int, label: files.Label) -> None:
        """Removes this hub's file of a save that another hub has not written."""
        with suppress(CheckpointError):
            files.remove([self._of(run, exchange) / label.name])

    def drop_runs_before(self, run: int) -> None:
        """Removes the runs before this one."""
        for number, folder in _numbered(self._folder, _RUN):
            if number < run:
                _remove_folder(folder)

    def _of(self, run: int, exchange: int) -> Path:
        return self._folder / f"run-{run}" / f"exchange-{exchange}"

    @staticmethod
    def _remove(folder: Path, rank: int, drops: Callable[[int], bool]) -> None:
        files.remove(one.path for one in files.listed(folder) if one.rank == rank and drops(one.step))


# ---- folders ---------------------------------------------------------------------------------------------------------


def _folders(folder: Path) -> list[Path]:
    """Returns the folders in a folder; [] if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(one.path) for one in entries if one.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as failed:
        raise CheckpointError(f"cannot read {folder}: {failed.strerror}", path=folder) from failed


def _numbered(folder: Path, pattern: "re.Pattern[str]") -> list[tuple[int, Path]]:
    """Returns the folders whose names the pattern matches, with the numbers in their names."""
    matched = ((pattern.fullmatch(one.name), one) for one in _folders(folder))
    return [(int(match[1]), one) for match, one in matched if match is not None]


def _files(folder: Path) -> Iterator[Path]:
    """Yields the files of checkpoints below a folder."""
    for at, _, names in os.walk(folder):
        yield from (Path(at, name) for name in sorted(names) if name.endswith(".ckpt"))


def _size(path: Path) -> int:
    with suppress(OSError):  # its job has removed it just now
        return path.stat().st_size
    return 0


def _told(title: str, paths: list[Path]) -> Saved:
    step, newest, nbytes = 0, 0.0, 0
    for path in paths:
        with suppress(OSError):  # CheckpointError too: a torn file has no step
            found = path.stat()
            newest, nbytes = max(newest, found.st_mtime), nbytes + found.st_size
            step = max(step, files.label(path).made)
    return Saved(title, step, nbytes, max(time.time() - newest, 0.0))


def _remove_folder(folder: Path) -> None:
    try:
        while folder.exists():
            with suppress(FileNotFoundError):  # another hub that has this folder removes it too
                shutil.rmtree(folder)
    except OSError as failed:
        raise CheckpointError(f"cannot remove {folder}: {failed.strerror}", path=folder) from failed
