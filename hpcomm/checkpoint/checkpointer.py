"""Checkpoints of a training as it goes on (ASAP, section 5: "fault tolerance by check-pointing the trained model
periodically to the disk").

After every k-th step a rank copies its part of the state, and a thread writes the copy to disk. The trainer pauses for
the copy only; no rank waits for another's disk, and there is no barrier. The ranks' copies form one checkpoint:

- *BSP hubs.* At the boundary after its step k a worker has pulled every key: each row has been applied k times. For
  the next time a row needs this rank's own push of step k + 1, which comes after the copy. So all ranks copy step k,
  whenever each of them does. Pushes of step k + 1 that others have made meanwhile are in no copy, and are made again
  after a restart.
- *Graphs under NOTIFY-ACK.* At its boundary k a rank has folded all updates of step k from its in-peers, and none of
  step k + 1: it folds them in its own step k + 1. Updates in its queues at the cut are sent again after a restart, so
  the queues of the cut are empty, and clocks are the steps of the rows. (Under SSP, BARRIER and ASYNC an update of step
  k may come after its receiver's cut: it is lost with the job.)
- *ASYNC hubs.* There is no common step: the cut is per owner, and each row of it between two updates. An owner's step k
  is its worker's step k; updates of others that are in no row at the cut are lost.
- *Hubs with a quorum* may apply rows without this rank's push: as under ASYNC the cut is per owner, and rows may be
  some steps further than the checkpoint's number.
- *Owners that only serve* have no steps. The first worker tells them that it is at the boundary, and goes on when they
  have copied: under BSP their rows cannot change before. This is the one wait for another rank: it lasts until they
  have written the previous copy and made this one.

Files are named after step and rank, and a rank writes and removes its own only, so one directory may be shared by all
ranks or be each host's own. A rank that has written tells all others so, by a signal in their memory. Older files go
when every rank has told that it has written newer ones.
"""

import math
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from os import PathLike
from types import TracebackType
from typing import Any

from .._core import seconds
from ..errors import CheckpointError, ConfigError, HpcommError, InvalidArgument, NotSupported, PeerFailed, Timeout
from ..exchange import Exchange
from ..exchange.shards import own_keys
from ..flow import feeders
from ..log import logger
from ..plan import Plan
from ..stage import whole
from ..stats import CheckpointStats
from . import files, resume
from .files import Label

Extra = Mapping[str, Any] | Callable[[], Mapping[str, Any]]

_SLOTS = 4  # the last files of a rank, whose steps it tells the others
_BITS = 12  # of a signal, for the steps that the exchange has made, less their upper bits
_ANY = 2**_BITS - 1  # in place of them: they are not counted
_END = 2**63  # in place of a step: the first worker saves no more


class Checkpointer:
    """Saves an exchange every so many steps while the training goes on. Collective to make.

        with hpcomm.Checkpointer(ex, "checkpoints", every=100) as ckpt:
            for step in range(first, last):
                ex.step(...)
                ckpt.after(step + 1, {"epoch": step // 1000})

    A checkpoint is complete when every rank has written its file; `latest` and `restore` find the newest such one.
    It keeps one more copy of this rank's part of the state in memory.

    Args:
        ex: the exchange. On a rank that only serves call Checkpointer.serve, not Exchange.serve.
        directory: of this exchange alone; shared by all ranks, or each host's own; made if it is missing.
        every: steps from one checkpoint to the next.
        keep: complete checkpoints to keep, including checkpoints of earlier runs in this directory. Older files are
            removed after a newer checkpoint is complete, so there are a few more while other ranks still write.
        timeout: seconds to wait for the other ranks; None means the context's default.

    An error of the thread that writes (a full disk, say) is raised by the next call of this rank, after that call has
    begun its own save. Then, and if `after` refuses a step that is due, the checkpoint of that step stays incomplete,
    and the ones before it stay. The other ranks do not stop for it: they log a warning, at a later step that is due or
    in close, when they have heard of it. A checkpointer belongs to the exchange's thread.

    Raises:
        CheckpointError: this rank cannot write into its directory.
        ConfigError: the ranks give different every or keep.
        InvalidArgument: an argument that cannot be, or a push or pull is pending; another rank refuses, e.g. because
            it cannot write.
        NotSupported: a user's plan in which a row can be applied without its owner's push, so that no rank can tell at
            which step it is.
    """

    def __init__(
        self,
        ex: Exchange,
        directory: str | PathLike[str],
        every: int = 100,
        keep: int = 2,
        *,
        timeout: float | None = None,
    ) -> None:
        self._ex, self._ctx = ex, ex.context
        self._rank, self._size = self._ctx.rank, self._ctx.size
        self._timeout = self._ctx.config.timeout
        self._last = self._nbytes = self._saved = 0
        self._pause = self._longest = self._waited = self._wrote = 0.0
        self._closed = False
        wrong: Exception | None = None
        has: list[Any] = []
        self._workers = ex.plan.workers
        self._serving = tuple(rank for rank in ex.plan.servers if rank not in self._workers)
        try:
            self._timeout = seconds(timeout, self._timeout)
            self._folder = files.folder(directory)
            self.every, self.keep = whole("every", every, 1), whole("keep", keep, 1)
            self._shard = ex.state_dict()
            _check_steps(ex.plan, self._workers, own_keys(self._shard))
            self._plan = resume.digest(ex.plan)
            files.prepare(self._folder, self._rank)
            has = resume.told_of(resume.candidates(self._folder, self._rank, self._size, self._plan)[0])
        except Exception as refused:  # the other ranks wait for this one
            wrong = refused
        told = [
            None if wrong is None else str(wrong) or type(wrong).__name__,
            [self.every, self.keep] if wrong is None else None,
            has,
            secrets.token_hex(4),
        ]
        self._agree(wrong, told)
        self._window = self._ctx.window(8, signals=(3 + _SLOTS) * self._size, timeout=self._timeout)
        self._lane = self._ctx.lane(self._timeout)  # of the thread that writes
        self._writer = ThreadPoolExecutor(1, "hpcomm-checkpoint")
        self._writing: Future[None] | None = None
        self._mine: list[int] = []  # written here, and not known to be complete
        self._mixed: set[int] = set()  # of which other ranks have files of another step of the job
        self._begun: set[int] = set()  # copied here
        self._missed = [0] * self._size  # the last step of each rank that was said to be missing there
        self._skips = ex._state.any.jumps  # steps, after this rank's update was late
        self._ctx._exchanges[id(self)] = self  # its close closes this one, after the exchange

    def _agree(self, wrong: Exception | None, told: list[Any]) -> None:
        every = resume.gather(self._ctx, told, self._timeout)
        if wrong is not None:
            raise wrong
        for rank, (refused, settings, _, _) in enumerate(every):
            if refused is not None:
                raise InvalidArgument(f"rank {rank} refuses the checkpointer: {refused}")
            if settings != every[0][1]:
                raise ConfigError(
                    f"checkpointer: every and keep are {settings} on rank {rank} and {every[0][1]} on rank 0: give the "
                    "same"
                )
        self._run = str(every[0][3])
        self._complete = sorted(resume.common([has for _, _, has, _ in every])[0])

    # ---- the trainer's calls ----------------------------------------------------------------------------------------

    def after(self, step: int, extra: Extra | None = None) -> bool:
        """Says that this rank has done so many steps, each after the one before; whether a checkpoint was begun.

        Called by every worker after each step, while no push or pull is pending. It saves when step is a multiple of
        every, or has passed one: with a quorum ex.version() counts the steps, or ex.clock on a graph, and a worker
        whose update was late skips some.

        Args:
            step: 1 after the first step, 101 after the first that follows a restart from step 100.
            extra: other values to save, which restore gives back to this rank: by name arrays, numbers, texts, and
                lists and dicts of these (a NumPy generator's state, say); or a function that gives them, called only
                when it saves.

        Raises:
            CheckpointError: the last checkpoint could not be written; this one, if it is due, is begun.
            InvalidArgument: a step that does not follow; or a push or pull is pending, or no file can hold an extra
                value, and then this rank saves nothing of the step and tells the others.
            Timeout, PeerFailed: a rank that only serves does not copy.
        """
        self._check_open("after")
        if self._rank not in self._workers:
            raise InvalidArgument(f"rank {self._rank} only serves: call serve instead of after")
        whole("step", step, self._last + 1, files.MOST_STEPS)
        passed = (step - 1) // self.every * self.every
        skipped = 0 < self._last < passed and step % self.every > 0 and self._skips
        missed = passed - self.every if skipped else passed
        if missed > self._last:
            self._miss(missed)
        if step % self.every and not skipped:
            self._look()
            self._last = step
            return False
        self._last = step
        due = passed if skipped else step
        try:
            self._ex._check_idle("after")  # before a rank that only serves has copied
            values = files.frozen((extra() if callable(extra) else extra) or {}, "extra")
            start = time.perf_counter()
            self._let_servers_copy(due)
            self._waited += time.perf_counter() - start
            lost = self._save(due, values)
        except BaseException:
            self._miss(due)
            raise
        self._hear()
        if lost is not None:
            raise lost
        return True

    def serve(self, timeout: float | None = None) -> None:
        """Serves as Exchange.serve does, and saves whenever the first worker says that it is due.

        Args:
            timeout: seconds; None means no deadline.

        Raises:
            CheckpointError: the last checkpoint could not be written.
            InvalidArgument: this rank is a worker.
            PeerFailed: a worker died.
        """
        self._check_open("serve")
        if self._rank in self._workers:
            raise InvalidArgument(
                f"rank {self._rank} is a worker, which serves the others in its waits and in close: serve is for ranks "
                "that only serve"
            )
        end = time.monotonic() + seconds(timeout, math.inf)
        while self._copy_served(max(0.0, end - time.monotonic())):
            pass
        self._finish()
        self._ex.serve(max(0.0, end - time.monotonic()))

    def stats(self) -> CheckpointStats:
        """Counts of this checkpointer on this rank so far."""
        return CheckpointStats(self._saved, self._nbytes, self._pause, self._longest, self._waited, self._wrote)

    def close(self) -> None:
        """Waits until this rank's last file is on disk; again is no error. It waits for no other rank. The first worker
        tells ranks that only serve that no checkpoint follows. Context.close closes a checkpointer that is still open.

        Raises:
            CheckpointError: the last checkpoint could not be written.
        """
        if self._closed:
            return
        self._closed = True
        if self._rank == self._workers[0]:
            for server in self._serving:
                with suppress(PeerFailed):
                    self._window.put_signal(server, None, signal=2 * self._size + self._rank, value=_END)
        try:
            self._finish()
        finally:
            self._writer.shutdown()
            with suppress(HpcommError):
                self._hear()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if raised is None:
            self.close()
            return
        with suppress(HpcommError):  # the first error is raised
            self.close()

    def __repr__(self) -> str:
        return f"<hpcomm.Checkpointer rank {self._rank}, every {self.every} steps into {self._folder}>"

    def _follow(self, ex: Exchange) -> None:
        """From here on another exchange of this context is saved, of the same keys and workers. Every rank calls it
        between the same steps."""
        self._finish()  # the copy is being written
        self._ex, self._shard = ex, ex.state_dict()
        _check_steps(ex.plan, self._workers, own_keys(self._shard))
        self._plan, self._skips = resume.digest(ex.plan), ex._state.any.jumps

    # ---- the copy ---------------------------------------------------------------------------------------------------

    def _let_servers_copy(self, step: int) -> None:
        """Tells the ranks that only serve to copy their rows at this step, and waits until they have. The first worker
        does so, as their rows cannot change before its next push."""
        if self._rank != self._workers[0]:
            return
        for server in self._serving:
            self._window.put_signal(server, None, signal=2 * self._size + self._rank, value=step)
        for server in self._serving:
            try:
                self._window.wait_signal(2 * self._size + server, step, self._timeout, server)
            except Timeout as timeout:
                told = f"{timeout}: rank {server} only serves: it must call Checkpointer.serve, or its disk is slow"
                raise Timeout(told, op="after", waiting_for=(server,), culprits=timeout.culprits) from None

    def _copy_served(self, timeout: float) -> bool:
        """Saves on a rank that only serves, when the first worker says so; whether there is more to come."""
        first = self._workers[0]
        # A wait for anything works for the rows of this rank. It is for any rank: while another worker computes, the
        # first one waits for this rank in turn, which is no deadlock.
        step = self._window.wait_signal(2 * self._size + first, self._last + 1, timeout)
        if step == _END:
            return False
        try:
            lost = self._save(step, {})
        except BaseException:
            self._miss(step)
            raise
        finally:  # the first worker goes on, copied or not
            self._last = step
            self._window.put_signal(first, None, signal=2 * self._size + self._rank, value=step)
        self._hear()
        if lost is not None:
            raise lost
        return True

    def _save(self, step: int, extra: Mapping[str, Any]) -> CheckpointError | None:
        """Begins to save; why the last file could not be written, if so."""
        start = time.perf_counter()
        lost = None
        try:
            self._finish()  # there is one copy
        except CheckpointError as wrong:
            lost = wrong
        copying = time.perf_counter()
        self._ex.state_dict(self._shard)
        copied = time.perf_counter()
        self._waited += copying - start
        self._pause += copied - copying
        self._longest = max(self._longest, copied - copying)
        made = self._steps_of_all()
        self._writing = self._writer.submit(self._write, step, files.UNCOUNTED if made is None else made, extra)
        self._begun.add(step)
        return lost

    def _steps_of_all(self) -> int | None:
        """How many steps the exchange has made, where all workers are at the same one when they stand between two
        steps; None: they are not, or this rank only serves."""
        return self._ex.version() if self._ex.params and self._ex._state.all.in_step else None

    def _look(self) -> None:
        """Raises the thread's error, if any."""
        if self._writing is not None and self._writing.done():
            self._finish()

    def _finish(self) -> None:
        if self._writing is None:
            return
        wait([self._writing])  # Ctrl-C leaves it to the next call: the copy is being read
        writing, self._writing = self._writing, None
        writing.result()

    def _miss(self, step: int) -> None:
        """Tells all ranks that this one has no file of a step, after the thread's pending signals."""
        self._writer.submit(self._tell, self._size + self._rank, step)

    def _hear(self) -> None:
        """Says which checkpoints that were begun here stay incomplete, because another rank has no file of them."""
        for rank, before in enumerate(self._missed):
            signal = self._size + rank
            if rank == self._rank or not self._window.test_signal(signal, before + 1):
                continue
            step = self._window.wait_signal(signal, before + 1, 0)
            if step not in self._begun:
                continue  # not yet, or never: a step that was due nowhere
            self._missed[rank] = step
            logger.warning(
                "rank %d: the checkpoint of step %d stays incomplete: rank %d has no file of it, and was told why",
                self._rank,
                step,
                rank,
            )

    def _check_open(self, op: str) -> None:
        if self._closed:
            raise InvalidArgument(f"rank {self._rank}: {op}: the checkpointer is closed")

    # ---- the thread -------------------------------------------------------------------------------------------------
    # Signals, of every rank at every rank: by number r the last step that rank r has written, by size + r the last that
    # it has refused, passed over or failed to write, by 2 * size + r, between the first worker and ranks that only
    # serve, the step that is to be copied and the step that has been; from 3 * size on, of each rank the last few that
    # it has written, with the steps of the exchange. All but the third are told by this thread alone, so that they come
    # in the order of the steps.

    def _write(self, step: int, made: int, extra: Mapping[str, Any]) -> None:
        start = time.perf_counter()
        try:
            self._remove_old()
            complete = self._complete[-1][0] if self._complete else 0
            label = Label(step, self._rank, self._size, self._run, self._plan, complete, made)
            self._nbytes = files.write(self._folder, label, {"shard": self._shard, files.GIVEN: extra})
        except Exception:
            self._tell(self._size + self._rank, step)
            raise
        self._saved += 1
        self._wrote += time.perf_counter() - start
        self._mine.append(step)
        slot = 3 * self._size + _SLOTS * self._rank + self._saved % _SLOTS
        self._tell(slot, step << _BITS | (_ANY if made == files.UNCOUNTED else made % _ANY))
        self._tell(self._rank, step)
        self._remove_old()

    def _tell(self, signal: int, step: int) -> None:
        for peer in range(self._size):
            with suppress(HpcommError):  # one that is gone needs not know; one that is not keeps its old files longer
                self._window.put_signal(peer, None, signal=signal, value=step, lane=self._lane)

    def _is_complete(self, step: int) -> bool:
        """Every rank has written it. A rank that has failed at a later step may have failed at this one too: its word
        of failures is stored before that of the next file, and read after."""
        window, size = self._window, self._size
        written = all(window.test_signal(r, step) and not window.test_signal(size + r, step) for r in range(size))
        return written and not self._is_mixed(step)

    def _is_mixed(self, step: int) -> bool:
        """Whether files of this number, which all ranks have written, are known to be of different steps of the job.
        A rank's last few files are looked at: others can be no further ahead, where all are at one step."""
        if step in self._mixed:
            return True
        made = {}
        for slot in range(3 * self._size, (3 + _SLOTS) * self._size):
            if self._window.test_signal(slot, 1):
                word = self._window.wait_signal(slot, 1, 0)
                if word >> _BITS == step and word % 2**_BITS != _ANY:
                    made[(slot - 3 * self._size) // _SLOTS] = word % 2**_BITS
        if len(set(made.values())) < 2:
            return False
        self._mixed.add(step)
        logger.warning(
            "rank %d: the checkpoint of step %d mixes different steps of the job, and will not be restored: ranks had "
            "exchanged different numbers of steps (%s). Give after the same number on every rank after the same step",
            self._rank,
            step,
            ", ".join(f"rank {rank}: {n}" for rank, n in made.items()),
        )
        return True

    def _remove_old(self) -> None:
        done = [step for step in self._mine if self._is_complete(step)]
        if not done:
            return
        newest = done[-1]
        self._mine = [step for step in self._mine if step > newest]
        self._complete = [one for one in self._complete if one[0] not in done] + [(step, self._run) for step in done]
        kept = self._complete[-self.keep :]
        older = {step for step, run in kept if run != self._run}  # may have files of ranks that are gone
        steps = {step for step, _ in kept}
        files.remove(
            found.path
            for found in files.listed(self._folder)
            if found.step < newest
            and found.rank % self._size == self._rank
            and found.step not in (steps if found.rank < self._size else older)
        )


def _check_steps(plan: Plan, workers: tuple[int, ...], own: frozenset[str]) -> None:
    """Refuses a plan by which a row can change while its owner, or the first worker if the owner only serves, stands
    at the end of a step. own: keys with separate parameters on each rank, which change in that rank's steps."""
    fed = feeders(plan.rows.lists())
    for row, (owner, key) in enumerate(
        zip(*(plan.rows.column(name).tolist() for name in ("owner", "key")), strict=True)
    ):
        if plan.keys[key].name in own:
            continue
        rank = owner if owner in workers else workers[0]
        if not fed[row] >> rank & 1:
            raise NotSupported(
                f"checkpointer: row {row} of the plan, which rank {owner} owns, gets no update from rank {rank}: it "
                "may change while its step is saved"
            )
