"""The worker of same_bits.py: runs jobs by the build of hpcomm that PYTHONPATH names, and tells their facts.

It reads a job a line from stdin, forks a process for it, and writes a line: the facts of that process, or how it ended.
A job's ranks are driven by threads or processes whose calls wait, or by one thread that gives them turns by a seed. In
turns, inline, by shm or loop, no event depends on the clock: so the bits of every discipline repeat, also of those that
take updates as they come.
"""

import contextlib
import json
import os
import random
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
from same_bits_rank import Asked, Job, Rank

import hpcomm
from hpcomm import _core

LIMIT = 20.0  # seconds of a call that waits
STUCK = 400  # looks in a row, of all ranks, after which nothing moves any more


# ---- turns -----------------------------------------------------------------------------------------------------------


class Turns:
    """Drives all ranks by one thread: each look is a rank's, whom the seed chooses. Calls that all ranks make together
    have a thread each, after what is under way has been worked off."""

    def __init__(self, job: Job, ranks: list[Rank]) -> None:
        self.job, self.ranks = job, ranks
        self.lot = random.Random(job["turns"]["seed"])
        self.programs = [rank.program() for rank in ranks]
        self.asked: list[Asked | None] = [None] * len(ranks)
        self.looks = 0

    def run(self) -> None:
        for i in range(len(self.ranks)):
            self._resume(i, None)
        end = time.monotonic() + LIMIT
        while any(self.asked):
            if self._together():
                continue
            i = self.lot.choices(range(len(self.ranks)), self.job["turns"]["pace"])[0]
            self.looks += 1
            if self._look(i):
                self.looks = 0
                self._work(self.job["turns"]["drains"])
            if self.looks > STUCK * len(self.ranks) or time.monotonic() > end:
                self._stuck()

    def _resume(self, i: int, value: Any, error: BaseException | None = None) -> None:
        try:
            self.asked[i] = self.programs[i].throw(error) if error else self.programs[i].send(value)
        except StopIteration:
            self.asked[i] = None

    def _look(self, i: int) -> bool:
        """Makes what a rank has asked for, or looks whether it has ended; whether that is so."""
        asked, rank = self.asked[i], self.ranks[i]
        if asked is None or asked[0] in ("all", "die", "state", "failed", "closed"):
            work(rank)
            return False
        try:
            if asked[0] == "do":
                value = asked[1](0)
            elif asked[1].test():
                value = asked[1].wait()
            else:
                return False
        except hpcomm.Timeout:
            self._work(self.job["turns"]["drains"])  # a part of it may be on its way
            return False
        except hpcomm.HpcommError as wrong:
            self._resume(i, None, wrong)
            return True
        self._resume(i, value)
        return True

    def _work(self, rounds: int) -> None:
        """Ranks work by turns; -1: until no core has taken an event for some rounds."""
        quiet, last, n = 0, -1, 0
        while n < rounds or (rounds < 0 and quiet < 3 and n < 200):
            for rank in self.ranks:
                work(rank)
            if rounds < 0:
                now = sum(events(rank) for rank in self.ranks)
                quiet, last = (quiet + 1 if now == last else 0), now
            n += 1

    def _together(self) -> bool:
        """Where all that are left ask for something that all make together."""
        left = [i for i, asked in enumerate(self.asked) if asked is not None]
        kinds = {self.asked[i][0] for i in left}  # type: ignore[index]
        if kinds <= {"all", "state"}:
            self._work(-1)
            self._call(left)
        elif "die" in kinds and kinds <= {"die", "failed", "closed"}:
            self._die(left)
        elif kinds <= {"failed", "closed"}:
            for i in left:
                self._resume(i, None)
        elif "failed" in kinds and not self._someone_died():
            self._revoke(left)
        else:
            return False
        self.looks = 0
        return True

    def _someone_died(self) -> bool:
        return any(rank.dead for rank in self.ranks)

    def _revoke(self, left: list[int]) -> None:
        """A rank has failed by itself: it tells the others, who would wait for it."""
        for i in left:
            if self.asked[i][0] == "failed":  # type: ignore[index]
                self.ranks[i].ctx.abort("failed")
                self.ranks[i].dead = True
                self.programs[i].close()
                self.asked[i] = None
        self._until_known()

    def _call(self, left: list[int]) -> None:
        """The calls of all, each in a thread that works for the others until they have ended too."""
        ended = threading.Barrier(len(left) + 1, timeout=LIMIT + 10)
        count, lock = [0], threading.Lock()
        results: dict[int, tuple[Any, BaseException | None]] = {}

        def call(i: int) -> None:
            asked = self.asked[i]
            assert asked is not None
            try:
                results[i] = (state_of(asked[1]) if asked[0] == "state" else asked[1](), None)
            except Exception as wrong:
                results[i] = (None, wrong)
            with lock:
                count[0] += 1
            while count[0] < len(left):
                work(self.ranks[i])
                time.sleep(0)
            ended.wait()

        for i in left:
            threading.Thread(target=call, args=(i,), daemon=True).start()
        ended.wait()
        for i in left:
            self._resume(i, *results[i])

    def _die(self, left: list[int]) -> None:
        """All have come to the death of a rank, or have failed: it goes, and the others wait until they know."""
        for i in left:
            if self.asked[i] == ("die", self.ranks[i].number):
                self.ranks[i].dead = True
                self.ranks[i].ctx.abort("dies")
        self._until_known()
        for i in left:
            self._resume(i, None)

    def _until_known(self) -> None:
        gone = {rank.number for rank in self.ranks if rank.dead}
        until_known([rank.ctx for rank in self.ranks if not rank.dead], gone)

    def _stuck(self) -> None:
        """Nothing moves any more: who waits for what is a fact; then a death becomes known to those it does not
        touch."""
        for i, asked in enumerate(self.asked):
            if asked is not None:
                self.ranks[i].facts.note(f"{self.ranks[i].at} stuck", [asked[0], self.ranks[i].steps])
        if getattr(self, "revoked", False) or not self._someone_died():
            for i, asked in enumerate(self.asked):
                if asked is not None:
                    self.programs[i].close()
                    self.asked[i] = None
            for rank in self.ranks:
                if not rank.dead:
                    rank.dead = True
                    rank.ctx.abort("stuck")
            return
        self.revoked, self.looks = True, 0
        next(rank for rank in self.ranks if not rank.dead).ctx.revoke()


def state_of(ex: hpcomm.Exchange) -> dict[str, Any]:
    return ex.state_dict()


def until_known(contexts: list[hpcomm.Context], gone: set[int]) -> None:
    """Waits until these know that others are gone."""
    end = time.monotonic() + LIMIT
    for ctx in contexts:
        while any(ctx.peers[rank].state not in ("left", "failed") for rank in gone):
            if time.monotonic() > end:
                raise RuntimeError("a death did not become known")
            time.sleep(0.0005)


def work(rank: Rank) -> None:
    """Works for the rows that a rank owns."""
    if rank.ex is not None and not rank.ex._closed and not rank.dead:
        with contextlib.suppress(hpcomm.HpcommError):
            rank.ex.progress()


def events(rank: Rank) -> int:
    """How many events its cores have taken."""
    if rank.ex is None or rank.ex._closed or rank.dead:
        return 0
    return int(_core.exchange_stats(rank.ex._handle)["events"])


def work_until(rank: Rank, is_over: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not is_over() and time.monotonic() < end:
        work(rank)
        time.sleep(0.0001)


# ---- threads and processes -------------------------------------------------------------------------------------------


def drive_blocking(rank: Rank, meet: Callable[[Rank], None], kill: Callable[[Rank], None]) -> None:
    """Drives one rank by calls that wait. meet: of all ranks, before a death; each works for the others meanwhile."""
    program, value, error = rank.program(), None, None
    while True:
        try:
            asked = program.throw(error) if error else program.send(value)
        except StopIteration:
            return
        value, error = None, None
        try:
            if asked[0] == "do":
                value = asked[1](LIMIT)
            elif asked[0] == "wait":
                value = asked[1].wait(LIMIT)
            elif asked[0] == "all":
                value = asked[1]()
            elif asked[0] == "state":
                value = state_of(asked[1])
            elif asked[0] == "failed":
                with contextlib.suppress(hpcomm.HpcommError):
                    rank.ctx.revoke()
                    if not isinstance(asked[1], hpcomm.PeerFailed):
                        rank.ctx.abort("failed")
                        return
            elif asked[0] == "die":
                meet(rank)
                if rank.number == asked[1]:
                    rank.dead = True
                    kill(rank)
                    return
                until_known([rank.ctx], {asked[1]})
        except hpcomm.HpcommError as wrong:
            error = wrong


class World:
    """A communicator of threads."""

    def __init__(self, rank: int, size: int, parts: list[bytes], meeting: threading.Barrier) -> None:
        self.rank, self.size, self._parts, self._meeting = rank, size, parts, meeting

    def allgather(self, data: bytes) -> list[bytes]:
        self._parts[self.rank] = data
        self._meeting.wait()
        parts = list(self._parts)
        self._meeting.wait()
        return parts


def settings(job: Job) -> dict[str, Any]:
    return {"transport": job["transport"], "loop_seed": job["loop_seed"], "timeout": LIMIT, "init_timeout": 60}


def in_threads(n: int, call: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def opened(job: Job) -> list[Rank]:
    """The ranks, connected."""
    n = job["n"]
    parts, meeting = [b""] * n, threading.Barrier(n, timeout=60)
    found: list[Any] = [None] * n

    def connect(i: int) -> None:
        found[i] = Rank(job, hpcomm.init(World(i, n, parts, meeting), **settings(job)))

    in_threads(n, connect)
    return found


def gathered(ranks: list[Rank]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for rank in ranks:
        facts |= rank.facts.found
    return {"facts": facts, "used": ranks[0].used}


def by_turns(job: Job) -> dict[str, Any]:
    ranks = opened(job)
    Turns(job, ranks).run()
    return gathered(ranks)


def by_threads(job: Job) -> dict[str, Any]:
    ranks = opened(job)
    came: set[int] = set()
    gone: set[int] = set()
    failed: list[str] = []

    def meet(rank: Rank) -> None:
        came.add(rank.number)
        work_until(rank, lambda: len(came | gone) == len(ranks))

    def kill(rank: Rank) -> None:
        rank.ctx.abort("dies")

    def run(i: int) -> None:
        try:
            drive_blocking(ranks[i], meet, kill)
        except BaseException:
            failed.append(traceback.format_exc())
            ranks[i].ctx.abort("wrong")
        finally:
            gone.add(i)

    in_threads(len(ranks), run)
    if failed:
        raise RuntimeError("\n".join(failed))
    return gathered(ranks)


class PipeWorld:
    """A communicator of processes, whose parent hands the parts around."""

    def __init__(self, rank: int, size: int, pipe: Connection) -> None:
        self.rank, self.size, self._pipe = rank, size, pipe

    def allgather(self, data: bytes) -> list[bytes]:
        self._pipe.send(data)
        found: list[bytes] = self._pipe.recv()
        return found


def by_processes(job: Job) -> dict[str, Any]:
    n = job["n"]
    pairs = [Pipe() for _ in range(n)]
    pids = []
    for i in range(n):
        pid = os.fork()
        if pid == 0:
            _rank_process(job, i, pairs)
        pids.append(pid)
    for _, theirs in pairs:
        theirs.close()
    found = _hub([ours for ours, _ in pairs])
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    facts: dict[str, Any] = {}
    for one in found:
        facts |= one["facts"] if one else {}
    return {"facts": facts, "used": next((one["used"] for one in found if one), ["none"])}


def _rank_process(job: Job, rank: int, pairs: list[tuple[Connection, Connection]]) -> None:
    try:
        own = pairs[rank][1]
        for i, (ours, theirs) in enumerate(pairs):
            ours.close()
            if i != rank:
                theirs.close()
        world = PipeWorld(rank, job["n"], own)
        one = Rank(job, hpcomm.init(world, **settings(job)))

        def tell() -> None:
            own.send({"facts": one.facts.found, "used": one.used})

        def kill(_: Rank) -> None:
            tell()
            os.kill(os.getpid(), signal.SIGKILL)

        def meet(rank: Rank) -> None:
            own.send(b"")
            work_until(rank, own.poll)
            own.recv()

        drive_blocking(one, meet, kill)
        tell()
        own.poll(LIMIT)
        with contextlib.suppress(hpcomm.HpcommError):
            one.ctx.close()
    except BaseException:
        with contextlib.suppress(OSError):
            pairs[rank][1].send({"facts": {f"r{rank} crashed": traceback.format_exc()}, "used": ["none"]})
    finally:
        os._exit(0)


def _hub(pipes: list[Connection]) -> list[Any]:
    """Hands parts around until every rank has told its facts or is gone."""
    ended: list[Any] = [None] * len(pipes)
    over = [False] * len(pipes)
    parts: dict[int, bytes] = {}
    while not all(over):
        ready = select.select([pipe for pipe, is_over in zip(pipes, over, strict=True) if not is_over], [], [], 60)[0]
        if not ready:
            break
        for pipe in ready:
            i = pipes.index(pipe)
            try:
                told = pipe.recv()
            except (EOFError, OSError):
                over[i] = True
                continue
            if isinstance(told, bytes):
                parts[i] = told
            else:
                ended[i], over[i] = told, True
        waiting = [i for i in range(len(pipes)) if not over[i]]
        if parts and set(waiting) <= set(parts):
            every = [parts.get(i, b"") for i in range(len(pipes))]
            for i in list(parts):
                with contextlib.suppress(OSError):
                    pipes[i].send(every)
            parts = {}
    for pipe in pipes:
        pipe.close()
    return ended


DRIVES = {"turns": by_turns, "threads": by_threads, "processes": by_processes}


# ---- the worker ------------------------------------------------------------------------------------------------------


def run(job: Job, pipe: int) -> None:
    """In a process of the job's own."""
    os.setpgid(0, 0)
    sys.stdout = sys.stderr
    try:
        with np.errstate(all="ignore"):
            found = DRIVES[job["drive"]](job)
    except BaseException:
        found = {"facts": {"crashed": traceback.format_exc()}, "used": ["none"]}
    data = json.dumps(found).encode()
    with open(pipe, "wb") as out:
        out.write(struct.pack("<Q", len(data)) + data)
    os._exit(0)


def limited(job: Job, seconds: float) -> dict[str, Any]:
    """The facts of a job; or how its process ended."""
    back, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(back)
        run(job, out)
    os.close(out)
    data, end = b"", time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([back], [], [], left)[0]:
            break
        part = os.read(back, 1 << 20)
        if not part:
            break
        data += part
    is_whole = len(data) >= 8 and len(data) == 8 + struct.unpack("<Q", data[:8])[0]
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(back)
    if is_whole:
        found: dict[str, Any] = json.loads(data[8:])
        return found
    how = "hangs: it was killed" if time.monotonic() >= end else f"ended by {status & 0x7F or status >> 8}"
    return {"facts": {"crashed": how}, "used": ["none"]}


def main() -> None:
    print(json.dumps({"hpcomm": hpcomm.__file__}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        start = time.monotonic()
        found = limited(order["job"], order["seconds"])
        print(json.dumps({**found, "took": time.monotonic() - start}), flush=True)


if __name__ == "__main__":
    main()
