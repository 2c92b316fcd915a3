"""What a rank of a random job does: it goes on until an error ends it, writes down what it was told, and leaves.

It runs in a child that random_jobs.py has forked from an interpreter which had imported numpy and hpcomm.
"""

import atexit
import ctypes
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from random_plan import LEAVES, Job

import hpcomm
from hpcomm import PlanOptions, _core, graphs

END, FELL, WORDS = 0, 1, 3  # words of the board behind the ranks' own; FELL: a word for each fall
_PR_SET_PDEATHSIG = 1
_FOREIGN = ("HPCOMM_", "OMPI_", "PMI", "PMIX_", "SLURM_", "TORCHELASTIC_", "LOCAL_WORLD_SIZE")


class Run:
    """One rank's part in a job. The board is shared with the driver: each rank's steps, whether to end, and when each
    victim fell, in nanoseconds of the monotonic clock."""

    def __init__(self, job: Job, rank: int, board: memoryview) -> None:
        self.job, self.rank, self.board = job, rank, board
        self.random = random.Random(f"{job.seed}:{job.number}:{rank}")
        self.shared = random.Random(f"{job.seed}:{job.number}:all")  # the same on every rank
        self.fall = next((fall for fall in job.falls if fall.victim == rank), None)
        self.context: hpcomm.Context | None = None
        self.place = "start"
        self.kept: list[object] = []  # as a program's global names would

    def at(self, place: str) -> None:
        self.place = place
        if self.fall is not None and self.fall.falls_at == place:
            self.board[self.job.size + FELL] = time.monotonic_ns()
            if self.fall.signal in LEAVES:
                self.leave()
            else:
                os.kill(os.getpid(), signal.SIGKILL if self.fall.signal == "kill" else signal.SIGSTOP)

    def leave(self) -> None:
        """Ends the context early, beside the call of another thread. Exchanges, which only that thread may close, stay
        open."""
        assert self.context is not None
        assert self.fall is not None
        if self.fall.signal == "abort":
            self.context.abort("the job says so")
        else:
            _core.context_close(self.context._handle)

    def leave_when_told(self) -> None:
        signal.sigwait([signal.SIGUSR2])
        self.leave()

    def goes_on(self) -> bool:
        """Whether there is one more step to be made; the rank has computed for it then."""
        made = self.board[self.rank]
        self.board[self.rank] = made + 1
        self.place = f"step {made + 1}"
        if self.board[self.job.size + END] or (self.job.limit and made >= self.job.limit):
            return False
        if self.job.work:
            time.sleep(self.random.uniform(0, self.job.work))
        return True


# ---- what ranks do ---------------------------------------------------------------------------------------------------


def _params(options: dict[str, Any]) -> dict[str, Any]:
    return {f"k{i}": np.zeros(options["elements"] + i, np.float32) for i in range(options["keys"])}


def _train(run: Run, ex: hpcomm.Exchange, call: str) -> None:
    while run.goes_on():
        for key in ex.params:
            ex.gradient(key)[...] = 1
        if call == "step":
            ex.step()
            continue
        for key in ex.params:
            if call == "push_pull":
                ex.push_pull(key)
            else:
                ex.push(key)
        for key in ex.params if call != "push_pull" else ():
            ex.pull(key)


def hub(run: Run, ctx: hpcomm.Context) -> None:
    given = run.job.options
    more: dict[str, Any] = {}
    if given.get("consistency") == "async":
        more = {"consistency": hpcomm.ASYNC, "depth": given["depth"]}
    if given.get("consistency") == "quorum":
        more = {"consistency": hpcomm.Consistency(quorum=given["quorum"], late="drop")}
    ex = hpcomm.parameter_hub(
        ctx,
        _params(given),
        placement=given["placement"],
        servers=given.get("servers"),
        rule=hpcomm.SGD(lr=0.01),
        progress=given["progress"],
        plan=PlanOptions(cores=1),
        **more,
    )
    run.kept.append(ex)
    if ex.params:
        _train(run, ex, given["call"])
    else:
        run.goes_on()
        run.place = "serve"
        ex.serve()
    run.at("close")
    ex.close()


def hosts(run: Run, ctx: hpcomm.Context) -> None:
    given = run.job.options
    ranks, n = list(range(ctx.size)), given["group"]
    groups = [ranks[first : first + n] for first in range(0, ctx.size, n)]
    racks = [ranks[:n], ranks[n:]] if given["racks"] else []
    ex = hpcomm.parameter_hub(
        ctx,
        _params(given),
        topology=hpcomm.Hierarchy(groups, racks, top=given["top"]),
        consistency=hpcomm.SSP(2) if given["consistency"] == "ssp" else hpcomm.BSP,
        rule=hpcomm.SGD(lr=0.01),
        progress=given["progress"],
        plan=PlanOptions(cores=1),
    )
    run.kept.append(ex)
    _train(run, ex, given["call"])
    run.at("close")
    ex.close()


def receivers(run: Run, ctx: hpcomm.Context) -> None:
    """By a delta of 2.5 two steps of three send nothing."""
    given = run.job.options
    ex = hpcomm.parameter_flow(
        ctx,
        _params(given),
        delta=given["delta"],
        decays=False,
        consistency=hpcomm.SSP(given["staleness"]),
        rule=hpcomm.SGD(lr=0.01),
        servers=given["servers"],
        tree=hpcomm.Tree(arity=given["arity"]),
        progress="thread" if given["staleness"] else given["progress"],
        plan=PlanOptions(cores=1),
    )
    run.kept.append(ex)
    _train(run, ex, given["call"])
    run.at("close")
    ex.close()


def _graph(name: str, n: int) -> graphs.Graph:
    if name.endswith("2"):  # both ways
        return {"ring": graphs.ring, "chain": graphs.chain}[name[:-1]](n, directed=False)
    made: graphs.Graph = getattr(graphs, name)(n)
    return made


def graph(run: Run, ctx: hpcomm.Context) -> None:
    given = run.job.options
    consistency = {
        "notify-ack": hpcomm.NOTIFY_ACK,
        "graph-bsp": hpcomm.BSP,
        "ssp": hpcomm.SSP(2),
        "quorum-graph": hpcomm.Consistency(quorum=given.get("quorum", 1), late="drop", waits_for="neighbours"),
    }[given["consistency"]]
    ex = hpcomm.stochastic_reduce(
        ctx,
        _params(given),
        topology=_graph(given["graph"], ctx.size),
        consistency=consistency,
        progress=given["progress"],
        plan=PlanOptions(cores=1),
        depth=4,
    )
    run.kept.append(ex)
    _train(run, ex, given["call"])
    run.at("close")
    ex.close()


def queue(run: Run, ctx: hpcomm.Context) -> None:
    given = run.job.options
    peers = _graph(given["graph"], ctx.size)
    ins, outs = peers.in_peers(ctx.rank), peers.out_peers(ctx.rank)
    q = ctx.receive_queue(ins, outs, (given["elements"],), depth=given["depth"], buffers=given["buffers"])
    run.kept.append(q)
    update = np.ones(given["elements"], np.float32)
    while run.goes_on():
        if given["buffers"]:
            update = q.acquire()
        q.send_all(update)
        for peer in ins:
            q.recv(peer)
        for peer in ins:
            q.ack(peer)
    run.at("close")


def window(run: Run, ctx: hpcomm.Context) -> None:
    """A ring: each rank puts to the next one, and waits for the previous one."""
    elements = run.job.options["elements"]
    win = ctx.window(elements, np.float32, signals=1)
    run.kept.append(win)
    after, before = (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size
    mine, number = np.ones(elements, np.float32), 0
    while run.goes_on():
        number += 1
        win.put_signal(after, mine, signal=0, value=number)
        win.wait_signal(0, number, peer=before)
    run.at("close")


def collective(run: Run, ctx: hpcomm.Context) -> None:
    calls = run.job.options["calls"]
    while run.goes_on():
        if calls != "allgather":
            ctx.barrier()
        if calls != "barrier":
            ctx.allgather(b"%4d" % ctx.rank)
    run.at("close")


def create(run: Run, ctx: hpcomm.Context) -> None:
    elements, ring = 1000, _graph("ring", ctx.size)
    while run.goes_on():
        what = run.shared.choice(("window", "queue", "lane", "hub", "graph"))
        run.place += f", {what}"
        if what == "window":
            ctx.window(elements, np.float32, signals=1)
        elif what == "queue":
            ctx.receive_queue(ring.in_peers(ctx.rank), ring.out_peers(ctx.rank), (elements,))
        elif what == "lane":
            ctx.lane()
        else:
            params = {"k": np.zeros(elements, np.float32)}
            made = hpcomm.parameter_hub(ctx, params) if what == "hub" else hpcomm.stochastic_reduce(ctx, params)
            made.step()
            made.close()


BODIES: dict[str, Callable[[Run, hpcomm.Context], None]] = {
    "hub": hub,
    "hosts": hosts,
    "receivers": receivers,
    "graph": graph,
    "queue": queue,
    "window": window,
    "collective": collective,
    "create": create,
}


# ---- a rank's life ---------------------------------------------------------------------------------------------------


def _live(run: Run) -> None:
    run.at("init")
    job = run.job
    settings: dict[str, Any] = {"timeout": job.timeout, "look_after": job.look_after, "silence": job.silence}
    settings["transport"] = "shm,tcp" if job.apart else job.transport
    body = BODIES[job.body]
    context = run.context = hpcomm.init(**settings)
    if run.fall is not None and run.fall.signal in LEAVES and not run.fall.falls_at:
        threading.Thread(target=run.leave_when_told, daemon=True).start()
    if job.leaves == "raise":
        with context:
            body(run, context)
            run.at("closed")
    else:
        run.kept.append(context)
        body(run, context)
        run.at("closed")
        context.close()


def _culprit(found: Any) -> dict[str, Any]:
    if isinstance(found, Mapping):
        return {"rank": found["rank"], "state": str(found["state"])}
    return {"rank": found.rank, "state": str(found.state)}


def _told(error: BaseException) -> dict[str, Any]:
    """What an exception says, as JSON."""
    return {
        "error": type(error).__name__,
        "message": str(error),
        "ranks": list(getattr(error, "ranks", ())),
        "left": list(getattr(error, "left", ())),
        "waiting_for": list(getattr(error, "waiting_for", ())),
        "culprits": [_culprit(found) for found in getattr(error, "culprits", ())],
        "op": getattr(error, "op", ""),
    }


def _join(namespaces: Path) -> None:
    """Takes this process, of one thread, to the network of another host."""
    for name in ("net",) if os.geteuid() == 0 else ("user", "net"):
        with open(namespaces / name) as found:
            if ctypes.CDLL(None, use_errno=True).setns(found.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns of {namespaces / name}")


def _enter(job: Job, rank: int, port: int, folder: Path, hosts: Sequence[tuple[str, Path]]) -> None:
    """Makes a forked child the rank that a launcher would have started."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a victim that is stopped ends with the driver
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])  # leave_when_told takes it
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        del os.environ[name]
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(job.size),
        "MASTER_ADDR": hosts[0][0] if job.apart else "127.0.0.1",
        "MASTER_PORT": str(port),
        "TMPDIR": str(folder),
    }
    if job.apart:
        os.environ["HPCOMM_SECRET_FILE"] = str(folder / "secret")
        _join(hosts[rank >= job.apart][1])
    out = os.open(folder / f"out.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)


def live(
    job: Job, rank: int, board: memoryview, port: int, folder: Path, hosts: Sequence[tuple[str, Path]]
) -> NoReturn:
    """The rest of a forked child's life. hosts: of a job that is apart, the address and the namespaces of each host."""
    code = 1
    try:
        _enter(job, rank, port, folder, hosts)
        run = Run(job, rank, board)
        saw: dict[str, Any] = {"error": None}
        try:
            _live(run)
            code = 0
        except hpcomm.HpcommError as error:
            saw, code = _told(error), 0
        except BaseException as error:
            saw = _told(error) | {"traceback": traceback.format_exc()}
        saw |= {"place": run.place, "when": time.monotonic_ns()}
        print(json.dumps(saw), flush=True)
        (folder / f"saw.{rank}").write_text(json.dumps(saw), encoding="utf-8")
        atexit._run_exitfuncs()  # closes the context that is open, as the interpreter's end would
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        os._exit(code)
