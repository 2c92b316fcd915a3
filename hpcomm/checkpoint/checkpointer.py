"""Checkpoints of a training while it runs (ASAP, section 5: "fault tolerance by check-pointing the trained model
periodically to the disk").

After every k-th step a rank copies its part of the state, and a thread writes the copy to disk. The trainer pauses only
for the copy: no rank waits for another's disk, and there is no barrier. These copies, the *cut*, form one checkpoint:

- *Servers under BSP.* When a worker ends step k it has pulled every key, so each row (the part of a key that one owner
  keeps) has been applied k times. A row needs this rank's push of step k + 1 before it is applied again, and that push
  comes after the copy. So all ranks copy step k, at whatever time each copies. Pushes of step k + 1 that others have
  made meanwhile are in no copy; a restart makes them again.
- *Graphs under NOTIFY-ACK.* When a rank ends step k it has folded all updates of step k from its in-peers, and none of
  step k + 1, which it folds in its own step k + 1. Updates in its queues at the cut are sent again after a restart. So
  the cut has no queues, and its clocks are the steps of the rows. (Under SSP, BARRIER and ASYNC an update of step k may
  come after its receiver's copy: it is lost with the job.)
- *Servers under ASYNC.* There is no common step. Each owner copies when its own worker has made step k, and each row
  between two updates; others' updates that are in no row then are lost.
- *Servers with a quorum* may apply rows without this rank's push. As under ASYNC each owner copies by itself, and rows
  may be some steps further than the checkpoint's number.
- *Owners that only serve* have no steps. The first worker tells them when it has ended a step, and continues when they
  have copied: under BSP their rows cannot change before. Only here a rank waits for another one, until it has written
  its previous copy and made this one.

File names contain step and rank, and a rank writes and removes only its own files, so one directory may be shared by
all ranks, or each host may have its own. A rank that has written a file tells all others by a signal in their memory.
Older files are removed when every rank has told that it has written newer ones.
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

_SLOTS = 4  # how many of its last files each rank tells the others
_BITS = 12  # bits of a signal for the steps that the exchange has made, modulo _ANY
_ANY = 2**_BITS - 1  # in place of these steps: they are not counted
_END = 2**63  # in place of a step: the first worker saves no more


class Checkpointer:
    """Saves an exchange every so many steps while the training continues. Collective to make.

        with hpcomm.Checkpointer(ex, "checkpoints", every=100) as ckpt:
            for step in range(first, last):
                ex.step(...)
                ckpt.after(step + 1, {"epoch": step // 1000})

    A checkpoint is complete when every rank has written its file; `latest` and `restore` find the newest complete one.
    The Checkpointer keeps one more copy of this rank's part of the state in memory. Use it in the exchange's thread
    only.

    Args:
        ex: the exchange. A rank that only serves must call Checkpointer.serve, not Exchange.serve.
        directory: for this exchange alone; shared by all ranks, or each host's own. It is made if it is missing.
        every: steps from one checkpoint to the next.
        keep: how many complete checkpoints to keep; checkpoints of earlier runs in this directory count too. Older
            files are removed once a newer checkpoint is complete, so there are a few more while other ranks still
            write.
        timeout: seconds to wait for the other ranks; None means the context's default.

    If the writing thread fails (a full disk, say), the next call of this rank raises the error, after it has begun its
    own save. The checkpoint of the failed step then stays incomplete, as it does if `after` refuses a step that is due;
    earlier checkpoints stay. Other ranks do not stop: they log a warning at a later step that is due, or in close, once
    they have heard of it.

    Raises:
        CheckpointError: this rank cannot write into its directory.
        ConfigError: the ranks give different every or keep.
        InvalidArgument: an invalid argument; a push or pull is pending; or another rank refuses, e.g. because it cannot
            write.
        NotSupported: the user's plan lets a row be applied without its owner's push, so that no rank can tell at which
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
        self._lane = self._ctx.lane(self._timeout)  # the writing thread's
        self._writer = ThreadPoolExecutor(1, "hpcomm-checkpoint")
        self._writing: Future[None] | None = None
        self._mine: list[int] = []  # steps written here that are not known to be complete
        self._mixed: set[int] = set()  # numbers whose files are of different steps of the job
        self._begun: set[int] = set()  # steps copied here
        self._missed = [0] * self._size  # by rank: the last step whose missing file was logged
        self._skips = ex._state.any.jumps  # whether step numbers may skip, after a late update
        self._ctx._exchanges[id(self)] = self  # closing the context closes this, after the exchange

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
        """Tells that this rank has made so many steps, and saves if this is due. Returns whether it has begun a
        checkpoint.

        Every worker must call it after each step, with rising numbers, while no push or pull is pending. It saves if
        step is a multiple of every, or if a multiple was skipped: with a quorum a worker whose update was late skips
        steps, which ex.version() counts, or ex.clock on a graph.

        Args:
            step: 1 after the first step, 101 after the first step that follows a restart from step 100.
            extra: other values to save, which restore gives back to this rank: a mapping from names to arrays, numbers,
                texts, and lists and dicts of these (a NumPy generator's state, say); or a function that returns it,
                called only if this call saves.

        Raises:
            CheckpointError: the last checkpoint could not be written. If this one is due, it has begun.
            InvalidArgument: step does not follow; a push or pull is pending; or no file can hold an extra value. Then
                this rank saves nothing of the step, and tells the others.
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
        """Serves as Exchange.serve does, and saves whenever the first worker says that a checkpoint is due.

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
        """Waits until this rank's last file is on disk, but for no other rank. A second call does nothing.

        The first worker tells ranks that only serve that no checkpoint follows. Context.close closes a checkpointer
        that is still open.

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
        """Saves ex from now on, another exchange of this context with the same keys and workers. Every rank calls it
        between the same steps."""
        self._finish()  # the thread may still write the copy
        self._ex, self._shard = ex, ex.state_dict()
        _check_steps(ex.plan, self._workers, own_keys(self._shard))
        self._plan, self._skips = resume.digest(ex.plan), ex._state.any.jumps

    # ---- the copy ---------------------------------------------------------------------------------------------------

    def _let_servers_copy(self, step: int) -> None:
        """On the first worker: tells the ranks that only serve to copy their rows at this step, and waits until they
        have. Their rows cannot change before its next push."""
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
        """Saves on a rank that only serves, when the first worker says so. Returns False if no checkpoint follows."""
        first = self._workers[0]
        # This rank's rows are worked on in any wait. It waits for any rank: if the first worker waits for this rank in
        # turn, while another worker computes, that is no deadlock.
        step = self._window.wait_signal(2 * self._size + first, self._last + 1, timeout)
        if step == _END:
            return False
        try:
            lost = self._save(step, {})
        except BaseException:
            self._miss(step)
            raise
        finally:  # the first worker continues, even if this rank has not copied
            self._last = step
            self._window.put_signal(first, None, signal=2 * self._size + self._rank, value=step)
        self._hear()
        if lost is not None:
            raise lost
        return True

    def _save(self, step: int, extra: Mapping[str, Any]) -> CheckpointError | None:
        """Begins to save. Returns the error if the last file could not be written, otherwise None."""
        start = time.perf_counter()
        lost = None
        try:
            self._finish()  # there is only one copy
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
        """Returns how many steps the exchange has made; None if workers between two steps may be at different ones, or
        if this rank only serves."""
        return self._ex.version() if self._ex.params and self._ex._state.all.in_step else None

    def _look(self) -> None:
        """Raises the thread's error, if it has failed."""
        if self._writing is not None and self._writing.done():
            self._finish()

    def _finish(self) -> None:
        if self._writing is None:
            return
        wait([self._writing])  # after Ctrl-C the next call waits: the thread reads the copy
        writing, self._writing = self._writing, None
        writing.result()

    def _miss(self, step: int) -> None:
        """Tells all ranks that this one has no file of a step, after the thread's pending signals."""
        self._writer.submit(self._tell, self._size + self._rank, step)

    def _hear(self) -> None:
        """Warns of checkpoints that were begun here and stay incomplete, because another rank has no file of them."""
        for rank, before in enumerate(self._missed):
            signal = self._size + rank
            if rank == self._rank or not self._window.test_signal(signal, before + 1):
                continue
            step = self._window.wait_signal(signal, before + 1, 0)
            if step not in self._begun:
                continue  # not begun here yet; or never, if the step was not due
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
    # Each rank has these signals of every rank r, by number:
    #   r               the last step that r has written
    #   size + r        the last step that r has refused, passed over or failed to write
    #   2 * size + r    between the first worker and ranks that only serve: the step to copy, and the copied step
    #   3 * size on     the last few steps that each rank has written, with the steps of the exchange
    # Except for the third, only this thread sends them, so they come in the order of the steps.

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
            with suppress(HpcommError):  # a rank that is gone need not know; another only keeps its old files longer
                self._window.put_signal(peer, None, signal=signal, value=step, lane=self._lane)

    def _is_complete(self, step: int) -> bool:
        """Returns whether every rank has written its file of this step. A later signal of a written file says nothing
        about a rank that failed at this step. It signals a failure before its next file, so this reads the failure
        after the file."""
        window, size = self._window, self._size
        written = all(window.test_signal(r, step) and not window.test_signal(size + r, step) for r in range(size))
        return written and not self._is_mixed(step)

    def _is_mixed(self, step: int) -> bool:
        """Returns whether the ranks' files of this number are known to be of different steps of the job. Looks at each
        rank's last few files: if all ranks are at one step, none can be further ahead."""
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
        older = {step for step, run in kept if run != self._run}  # earlier runs' steps may have files of more ranks
        steps = {step for step, _ in kept}
        files.remove(
            found.path
            for found in files.listed(self._folder)
            if found.step < newest
            and found.rank % self._size == self._rank
            and found.step not in (steps if found.rank < self._size else older)
        )


def _check_steps(plan: Plan, workers: tuple[int, ...], own: frozenset[str]) -> None:
    """Refuses a plan in which a row can change while a checkpoint is copied: it needs no push of its owner, or of the
    first worker if the owner only serves. own: keys with separate parameters on each rank, which change only in its own
    steps."""
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
