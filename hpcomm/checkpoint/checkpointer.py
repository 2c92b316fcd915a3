"""Checkpoints of a training while it runs (ASAP, section 5: "fault tolerance by check-pointing the trained model
periodically to the disk").

After every k-th step a rank copies its part of the state, and a thread writes the copy to disk. The trainer pauses only
for the copy: no rank waits for another's disk, and there is no barrier. The copies of all ranks form one checkpoint,
the *cut*. A row is the part of a key that one rank, its owner, keeps. Why the copies fit together:

- *Servers under BSP.* When a worker ends step k it has pulled every key, so each row has been applied k times. Before a
  row is applied again it needs this rank's push of step k + 1, which comes after the copy. So all ranks copy step k,
  even if they copy at different times. Pushes of step k + 1 that other ranks have already made are in no copy; after a
  restart those ranks make them again.
- *Graphs under NOTIFY-ACK.* When a rank ends step k it has folded all updates of step k from its in-peers, and none of
  step k + 1. Updates in its queues at the cut are sent again after a restart. So the cut has no queues, and its clocks
  are the steps of the rows. (Under SSP, BARRIER and ASYNC an update of step k may come after its receiver's copy. That
  update is lost if the job restarts.)
- *Servers under ASYNC.* Ranks have no common step. Each owner copies when its own worker has made step k, and copies
  each row between two updates. Updates of other workers that are in no row at that time are lost if the job restarts.
- *Servers with a quorum.* Rows may be applied without this rank's push. As under ASYNC, each owner copies by itself,
  and rows may be some steps further than the checkpoint's number.
- *Owners that only serve.* They have no steps. The first worker tells them when it has ended a step, and continues once
  they have copied; under BSP their rows cannot change before that. This is the only wait of one rank for another: the
  first worker waits until such an owner has written its previous copy and made this one.

File names contain step and rank, and a rank writes and removes only its own files. So all ranks may share one
directory, or each host may have its own. A rank that has written a file tells all others by a signal in their windows.
A rank removes an older file when every rank has told that it has written newer ones.
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

_SLOTS = 4  # for how many of its last files each rank tells the others
_BITS = 12  # bits of a signal that hold the exchange's step count, modulo _ANY
_ANY = 2**_BITS - 1  # in place of that step count: steps are not counted
_END = 2**63  # sent in place of a step: the first worker saves no more


class Checkpointer:
    """Saves an exchange every so many steps while the training continues. Collective to make.

        with hpcomm.Checkpointer(ex, "checkpoints", every=100) as ckpt:
            for step in range(first, last):
                ex.step(...)
                ckpt.after(step + 1, {"epoch": step // 1000})

    A checkpoint is complete when every rank has written its file. `latest` and `restore` find the newest complete one.
    The Checkpointer keeps one more copy of this rank's part of the state in memory. Call it only from the thread that
    uses the exchange.

    Args:
        ex: the exchange. A rank that only serves must call Checkpointer.serve, not Exchange.serve.
        directory: a directory for this exchange alone. All ranks may share it, or each host may have its own. It is
            made if it is missing.
        every: the number of steps from one checkpoint to the next.
        keep: how many complete checkpoints to keep. Checkpoints of earlier runs in this directory count too. Older
            files are removed once a newer checkpoint is complete, so a few more files exist while other ranks still
            write.
        timeout: seconds to wait for the other ranks; None means the context's default.

    If the writing thread fails (a full disk, say), this rank's next call raises the error, after it has begun its own
    save. The checkpoint of the failed step stays incomplete. It also stays incomplete if `after` raises at a step that
    is due. Earlier checkpoints stay. Other ranks do not stop: they log a warning at a later step that is due, or in
    close, if they have heard of the failure by then.

    Raises:
        CheckpointError: this rank cannot write into its directory.
        ConfigError: ranks gave different values of every or keep.
        InvalidArgument: an argument is invalid; a push or pull is pending; or another rank refuses, e.g. because it
            cannot write.
        NotSupported: in the user's plan a row may be applied without its owner's push, so no rank can tell at which
            step the row is.
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
        self._lane = self._ctx.lane(self._timeout)  # the lane of the writing thread
        self._writer = ThreadPoolExecutor(1, "hpcomm-checkpoint")
        self._writing: Future[None] | None = None
        self._mine: list[int] = []  # steps that this rank has written and that are not known to be complete
        self._mixed: set[int] = set()  # numbers of checkpoints whose files are from different steps of the job
        self._begun: set[int] = set()  # steps that this rank has copied
        self._missed = [0] * self._size  # for each rank, the last step whose missing file was logged
        self._skips = ex._state.any.jumps  # whether this rank may skip step numbers, after a late update
        self._ctx._exchanges[id(self)] = self  # closing the context also closes this, after the exchange

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
        """Tells the Checkpointer that this rank has made `step` steps, and begins a checkpoint if one is due. Returns
        whether it has begun one.

        Every worker must call it after each step, with rising numbers, while no push or pull is pending. A checkpoint
        is due if step is a multiple of every, or if a multiple was skipped. Steps are skipped with a quorum by a worker
        whose update was late; ex.version() (on a graph ex.clock) counts the skipped steps too.

        Args:
            step: 1 after the first step; 101 after the first step that follows a restart from step 100.
            extra: other values to save, which restore gives back to this rank. It is a mapping from names to arrays,
                numbers, texts, and lists and dicts of these (a NumPy generator's state, say). Or it is a function that
                returns such a mapping; the function is called only if a checkpoint is due.

        Raises:
            CheckpointError: the last checkpoint could not be written. If a checkpoint is due now, it has begun.
            InvalidArgument: step is not above the last one; a push or pull is pending; or no file can hold an extra
                value. Then this rank saves nothing of the step, and tells the others.
            Timeout, PeerFailed: a rank that only serves does not copy its rows.
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
            self._ex._check_idle("after")  # checked before ranks that only serve have copied
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
        """Serves as Exchange.serve does, and copies this rank's rows whenever the first worker says that a checkpoint
        is due.

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
        """Returns this rank's counts so far."""
        return CheckpointStats(self._saved, self._nbytes, self._pause, self._longest, self._waited, self._wrote)

    def close(self) -> None:
        """Waits until this rank's last file is on disk. It does not wait for other ranks. A second call does nothing.

        On the first worker it tells the ranks that only serve that no checkpoint follows. Context.close closes a
        Checkpointer that is still open.

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
        """Saves the exchange ex from now on. It must have the same context, keys and workers. Every rank calls this
        between the same two steps."""
        self._finish()  # the thread may still write the copy
        self._ex, self._shard = ex, ex.state_dict()
        _check_steps(ex.plan, self._workers, own_keys(self._shard))
        self._plan, self._skips = resume.digest(ex.plan), ex._state.any.jumps

    # ---- the copy ---------------------------------------------------------------------------------------------------

    def _let_servers_copy(self, step: int) -> None:
        """On the first worker: tells the ranks that only serve to copy their rows at this step, and waits until they
        have copied. Their rows cannot change before this worker's next push."""
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
        """Waits until the first worker tells this rank, which only serves, to copy its rows, and saves them. Returns
        False if no checkpoint follows."""
        first = self._workers[0]
        # During the wait this rank works on its rows. The wait blames no rank in particular: the first worker may wait
        # for this rank at the same time while another worker computes, and that is no deadlock.
        step = self._window.wait_signal(2 * self._size + first, self._last + 1, timeout)
        if step == _END:
            return False
        try:
            lost = self._save(step, {})
        except BaseException:
            self._miss(step)
            raise
        finally:  # lets the first worker continue, even if this rank has not copied
            self._last = step
            self._window.put_signal(first, None, signal=2 * self._size + self._rank, value=step)
        self._hear()
        if lost is not None:
            raise lost
        return True

    def _save(self, step: int, extra: Mapping[str, Any]) -> CheckpointError | None:
        """Begins a save. Returns the error if the last file could not be written, otherwise None."""
        start = time.perf_counter()
        lost = None
        try:
            self._finish()  # the memory for the copy exists only once
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
        """Returns how many steps the exchange has made. Returns None if this rank only serves, or if workers may be at
        different steps at this point."""
        return self._ex.version() if self._ex.params and self._ex._state.all.in_step else None

    def _look(self) -> None:
        """Raises the error with which the writing thread failed, if it failed."""
        if self._writing is not None and self._writing.done():
            self._finish()

    def _finish(self) -> None:
        if self._writing is None:
            return
        wait([self._writing])  # after Ctrl-C the next call waits too: the thread reads the copy
        writing, self._writing = self._writing, None
        writing.result()

    def _miss(self, step: int) -> None:
        """Tells all ranks that this rank has no file of a step. The signal follows the thread's earlier signals."""
        self._writer.submit(self._tell, self._size + self._rank, step)

    def _hear(self) -> None:
        """Logs a warning for each checkpoint that this rank has begun and that another rank has no file of."""
        for rank, before in enumerate(self._missed):
            signal = self._size + rank
            if rank == self._rank or not self._window.test_signal(signal, before + 1):
                continue
            step = self._window.wait_signal(signal, before + 1, 0)
            if step not in self._begun:
                continue  # this rank has not begun it yet, or never will if the step was not due
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
    # Each rank has these signals from every rank r, by number:
    #   r               the last step that r has written
    #   size + r        the last step that r has refused, skipped or failed to write
    #   2 * size + r    between the first worker and a rank that only serves: the step to copy, or the step copied
    #   3 * size on     the last few steps that each rank has written, with the exchange's step count
    # Only this thread sends signals other than the third kind, so they come in the order of the steps.

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
            with suppress(HpcommError):  # a rank that is gone need not know; any other rank only keeps old files longer
                self._window.put_signal(peer, None, signal=signal, value=step, lane=self._lane)

    def _is_complete(self, step: int) -> bool:
        """Returns whether every rank has written its file of this step. A rank that has written a later file may have
        failed at this step, so the failures must be read too. A rank signals a failure before its next file, so this
        function reads the failure after the file."""
        window, size = self._window, self._size
        written = all(window.test_signal(r, step) and not window.test_signal(size + r, step) for r in range(size))
        return written and not self._is_mixed(step)

    def _is_mixed(self, step: int) -> bool:
        """Returns whether ranks' files of this number are known to come from different steps of the job. Reading each
        rank's last few files suffices: if all ranks are at one step, no rank can be further ahead."""
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
        older = {step for step, run in kept if run != self._run}  # earlier runs may have files of more ranks
        steps = {step for step, _ in kept}
        files.remove(
            found.path
            for found in files.listed(self._folder)
            if found.step < newest
            and found.rank % self._size == self._rank
            and found.step not in (steps if found.rank < self._size else older)
        )


def _check_steps(plan: Plan, workers: tuple[int, ...], own: frozenset[str]) -> None:
    """Raises NotSupported for a plan in which a row can change while a checkpoint is copied: the row needs no push of
    its owner (or, if the owner only serves, of the first worker). own: the keys whose parameters differ by rank; they
    change only in a rank's own steps."""
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
