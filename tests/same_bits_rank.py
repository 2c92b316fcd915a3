"""What a rank of same_bits.py does: the arguments of its exchange, its program, and its facts.

A rank is a generator that yields what may wait: ("do", call), where call(timeout) may be made again after a Timeout,
("wait", handle), ("all", call), which every rank makes together, ("state", exchange) likewise, ("die", rank),
("failed", error) and ("closed",). So one program serves several drivers (same_bits_run.py).
"""

import contextlib
import hashlib
import importlib
import itertools
from collections.abc import Generator
from typing import Any

import numpy as np

import hpcomm
from hpcomm import EngineOptions, PlanOptions
from hpcomm import codec as codecs
from hpcomm import topology as topologies

# In earlier builds topology has the graphs, and an import of hpcomm.graphs would find that of another build.
graphs: Any = topologies if hasattr(topologies, "from_adjacency") else importlib.import_module("hpcomm.graphs")

F32 = np.float32
Job = dict[str, Any]
Asked = tuple[Any, ...]
Program = Generator[Asked, Any, Any]


# ---- arguments -------------------------------------------------------------------------------------------------------


def graph_of(told: list[Any], n: int) -> Any:
    name, more = told
    if name == "weighted":
        lot = np.random.default_rng(more["seed"])
        dense = lot.integers(0, 3, (n, n)) + np.eye(n, dtype=int)
        return graphs.from_adjacency(dense / dense.sum(axis=1, keepdims=True), weighted=True)
    return getattr(graphs, name)(n, **more)


def two_calls(ex: Any) -> Any:
    """Exchange.split; in earlier builds the exchange itself has these calls."""
    return getattr(ex, "split", ex)


def version_of(ex: Any) -> int:
    """Exchange.version, which in earlier builds is a property."""
    found = ex.version
    return found() if callable(found) else found  # type: ignore[no-any-return]


def topology_of(told: Any, n: int) -> Any:
    if isinstance(told, dict):
        return {name: topology_of(one, n) for name, one in told["by key"].items()}
    kind, *rest = told
    if kind == "servers":
        placement, which, more = rest
        tree = {"tree": topologies.Tree(arity=more["tree"])} if "tree" in more else {}
        return hpcomm.ParameterServer(placement, which, **{**more, **tree})
    if kind == "hosts":
        return hpcomm.Hierarchy(rest[0], **{"racks": (), **rest[1]})
    if kind == "tree":
        return topologies.Tree(arity=rest[0], root=rest[1])
    if kind == "peers":
        return hpcomm.PeerToPeer(None if rest[0] is None else graph_of(rest[0], n), relay=rest[1])
    if kind == "hostgraph":
        return topologies.HostGraph(graph_of(rest[0], len(rest[1])), tuple(map(tuple, rest[1])))
    made = [graph_of(one, n) for one in rest[0]]
    if len(made) > 1:
        return made
    return list(made[0]) if isinstance(made[0], tuple) else made[0]


def consistency_of(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: consistency_of(one) for name, one in told["by key"].items()}
    name, *rest = told
    if name == "SSP":
        return hpcomm.SSP(rest[0])
    if name == "quorum":
        grace = float("inf") if rest[1] == "inf" else rest[1]
        return hpcomm.Consistency(quorum=rest[0], grace=grace, **rest[2])
    return getattr(hpcomm, name)


def codec_of(told: Any) -> Any:
    if not isinstance(told, list):
        return told
    name, args, more = told
    return getattr(codecs, name)(*map(codec_of, args), **more)


def rule_of(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: rule_of(one) for name, one in told["by key"].items()}
    return getattr(hpcomm, told[0])(**told[1])


def make(job: Job, ctx: hpcomm.Context) -> hpcomm.Exchange:
    lot = np.random.default_rng([job["seed"], 77])
    values = {name: _drawn(lot, shape, job["whole"]) for name, shape in job["keys"].items()}
    plan = {name: job[name] for name in ("reduce", "chunk_bytes", "depth", "cores")}
    for name in ("codec", "codec_out"):
        if name in job:
            plan[name] = {key: codec_of(one) for key, one in job[name].items()}
    engine = ("progress", "groups", "split", "in_place", "shared_params", "check_finite")
    return hpcomm.Exchange(
        ctx,
        values,
        topology_of(job["topology"], job["n"]),
        consistency_of(job["consistency"]),
        rule_of(job["rule"]),
        plan=PlanOptions(**plan),
        engine=EngineOptions(**{name: job[name] for name in engine if name in job}),
    )


def _drawn(lot: np.random.Generator, shape: list[int], whole: bool) -> Any:
    found = lot.integers(-16, 17, shape) if whole else lot.standard_normal(shape)
    return np.asarray(found, F32).reshape(shape)


def update(job: Job, name: str, rank: int, step: int) -> Any:
    """An array; for Factors the pairs of a rank, fewer than K now and then."""
    lot = np.random.default_rng([job["seed"], int(name[1:]), rank, step])
    shape, codec = job["keys"][name], job.get("codec", {}).get(name)
    if isinstance(codec, list) and codec[0] == "Factors" and len(shape) == 2:
        count = int(lot.integers(0 if step % 4 == 3 else 1, codec[1][0] + 1))
        return tuple(_drawn(lot, [count, size], job["whole"]) for size in shape)
    found = _drawn(lot, shape, job["whole"])
    if job["whole"] and job["reduce"] == "mean":
        found *= F32(60)
    return found


# ---- facts -----------------------------------------------------------------------------------------------------------


class Facts:
    """What is compared, by name; and where a job was in which kind."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def array(self, name: str, value: Any) -> None:
        """A digest of the bits, and the sum for a reader."""
        raw = np.ascontiguousarray(value)
        with np.errstate(all="ignore"):
            total = float(raw.astype(np.float64).sum()) if raw.dtype.kind in "fiu" else 0.0
        self.found[name] = f"{hashlib.sha1(raw.tobytes()).hexdigest()[:12]} sum {total:.9g}"

    def note(self, name: str, value: Any) -> None:
        self.found[name] = value

    def error(self, name: str, error: BaseException) -> None:
        """The first sentence of an error, without numbers of seconds."""
        self.found[name] = f"{type(error).__name__}: {first_sentence(str(error))}"


def first_sentence(text: str) -> str:
    """What a reader reads first: the line, without the seconds that it took."""
    words = text.split("\n", maxsplit=1)[0].split(" ")
    for i, word in enumerate(words[1:], 1):
        if word.rstrip(".,;:)") in ("s", "seconds", "ms") and words[i - 1].lstrip("(").replace(".", "").isdigit():
            words[i - 1] = "T"
    return " ".join(words)


def counted(ex: hpcomm.Exchange) -> dict[str, Any]:
    """The counts that do not depend on the clock, where the order of events does not."""
    stats = ex.stats()
    names = "pushes pulls applied bytes_folded bytes_written bytes_sent reduces whole torn stale missing dropped"
    found = {name: getattr(stats, name) for name in f"{names} dropped_at".split()}
    found["by_inputs"], found["by_staleness"] = list(stats.by_inputs), list(stats.by_staleness)
    found["peers"] = [[p.bytes_sent, p.bytes_received, p.late, p.dropped] for p in stats.peers]
    found["traffic"] = sorted([t.rank, t.stage, t.bytes] for t in stats.traffic)
    found["codecs"] = {
        name: [one.pieces, one.elements, one.kept, one.bytes, one.returned, one.decoded]
        for name, one in stats.codecs.items()
    }
    return found


def members(ex: hpcomm.Exchange) -> list[str]:
    """The disciplines of an exchange's schemes, as suits in csrc/discipline finds them."""
    found = []
    for one in ex._schemes:
        rows, consistency, split = list(one.plan.rows), one.scheme.consistency, bool(ex._state.made.engine.split)
        stages = any(edge.row >= 0 for row in rows for edge in row.out_edges)
        applied = [(row.key, row.offset) for row in rows if row.action == "apply"]
        copies = any(a == b for a, b in itertools.pairwise(applied))
        pushes = all(edge.row < 0 for row in rows for edge in row.in_edges)
        peers = not one.phases and copies and pushes and not stages and all(len(row.out_edges) == 1 for row in rows)
        passing = any(edge.row < -1 for row in rows for edge in row.in_edges)
        quorum = 0 if one.mode == "ASYNC" else consistency.quorum or 0
        bsp = one.mode == "BSP" or (one.mode == "SSP" and not consistency.staleness and not one.phases)
        few = any(quorum < len(row.in_edges) for row in rows)
        outer = any(quorum < len(row.in_edges) for row in rows if row.action != "forward")
        alone = any(quorum < len(row.in_edges) - 1 for row in rows)
        each = one.mode == "ASYNC" or (one.mode == "SSP" and not bsp)
        array = [
            ("quorum", quorum and not one.phases and not stages and few),
            ("graph_quorum", quorum and one.phases and not stages and alone),
            ("groups_quorum", quorum and not one.phases and stages and (copies or outer)),
            ("unflushed", one.mode == "BARRIER" or (one.mode == "ASYNC" and one.phases)),
            ("ssp", one.mode == "SSP" and one.phases),
            ("peers_ssp", one.mode == "SSP" and not bsp and peers and not passing),
            ("peers", bsp and not split and peers and not passing),
            ("passing_peers_ssp", one.mode == "SSP" and not bsp and peers and passing),
            ("passing_peers", bsp and not split and peers and passing),
            ("updates_ssp", one.mode == "SSP" and not one.phases and not bsp and copies),
            ("groups", each and not one.phases and stages),
            ("server_ssp", one.mode == "SSP" and not one.phases and not bsp),
            ("notify_ack", one.mode == "NOTIFY_ACK"),
            ("async", one.mode == "ASYNC" and not one.phases),
            ("split_peers", bsp and split and peers and not passing),
            ("split", split and bsp),
            ("graph_bsp", bsp and one.phases and not split),
            ("bsp", bsp and not one.phases and not split),
        ]
        found.append(next((name for name, suits in array if suits), "none"))
    return found


# ---- the program of a rank -------------------------------------------------------------------------------------------


class Rank:
    """One rank of a job: its program, and what it has found."""

    def __init__(self, job: Job, ctx: hpcomm.Context) -> None:
        self.job, self.ctx, self.facts = job, ctx, Facts()
        self.number = ctx.rank  # which it keeps when others are lost
        self.ex: Any = None
        self.saved: Any = None
        self.steps, self.names = 0, list(job["keys"])
        self.dead, self.used = False, ["refused"]

    @property
    def at(self) -> str:
        return f"r{self.number}"

    def program(self) -> Program:
        try:
            self.ex = yield ("all", lambda: make(self.job, self.ctx))
        except hpcomm.HpcommError as wrong:
            self.facts.error(f"{self.at} made", wrong)
            return
        with contextlib.suppress(AttributeError):
            self.used = members(self.ex)
        first, ops = 0, self.job["ops"]
        for number, op in enumerate(ops):
            if number < first:
                continue
            try:
                ended = yield from getattr(self, f"op_{op[0]}")(f"{self.at} {number:02} {op[0]}", *op[1:])
            except hpcomm.InvalidArgument as wrong:
                self.facts.error(f"{self.at} {number:02} error", wrong)
                ended = "under way" in str(wrong) and (yield from self._ends(number))
            except hpcomm.HpcommError as wrong:
                self.facts.error(f"{self.at} {number:02} error", wrong)
                first = next((i for i in range(number + 1, len(ops)) if ops[i][0] == "recover"), 0)
                ended = first == 0
                if ended:
                    yield ("failed", wrong)
            if ended:
                break
        if not self.dead:
            yield from self.end()

    def _ends(self, number: int) -> Program:
        """A call that is under way after a refused one is waited for."""
        for name in self.names:
            with contextlib.suppress(hpcomm.InvalidArgument):
                yield ("wait", (yield ("do", lambda t, name=name: self.ex.pull_nb(name, timeout=t))))
        self.facts.note(f"{self.at} {number:02} went on", True)
        return False

    def end(self) -> Program:
        """Meets the others where all are there, and closes."""
        if self._all_here():
            try:
                yield from self._finale()
            except hpcomm.HpcommError as wrong:
                self.facts.error(f"{self.at} finale", wrong)
                yield ("failed", wrong)
        if not self.ex._closed:
            self.facts.note(f"{self.at} counts", counted(self.ex))
        try:
            yield ("do", lambda t: self.ex.close(timeout=t))
        except hpcomm.HpcommError as wrong:
            self.facts.error(f"{self.at} close", wrong)
        yield ("closed",)
        self._note_params(f"{self.at} closed")

    def _all_here(self) -> bool:
        """Not where a rank may wait for a version that others never push: with a quorum on a graph, which skips some,
        and where ranks are behind under SSP."""
        skips = "waits_for" in str(self.job["consistency"])
        waits = self.job.get("lags") and self.job["family"] not in ("server_ssp", "groups")
        return not skips and not waits and not any(op[0] in ("die", "close", "recover") for op in self.job["ops"])

    def _finale(self) -> Program:
        for _ in range(2):
            if self.ex.params:
                yield from self._pull()
            yield ("all", self.ctx.barrier)
        if self.job["family"] in ("groups", "updates_ssp", "peers_ssp", "passing_peers_ssp"):
            state = yield ("state", self.ex)
            yield ("all", lambda: self.ex.load_state_dict(state))
        self._note_params(f"{self.at} final")

    def _note_params(self, when: str) -> None:
        for name, value in self.ex.params.items():
            self.facts.array(f"{when} {name}", value)

    def _works(self, who: list[int] | None) -> bool:
        return bool(self.ex.params) and (who is None or self.number in who)

    # ---- ops ----

    def op_step(self, at: str, how: str, step: int, who: list[int] | None) -> Program:
        if not self._works(who):
            return
        ex, grads = self.ex, {name: update(self.job, name, self.number, step) for name in self.names}
        if self.job.get("check_finite") and step == 1:
            yield from self._refused(at)
        if how == "step":
            yield ("do", lambda t: ex.step(grads, timeout=t))
        elif how == "in place":
            for name in self.names:
                ex.params[name][...] -= grads[name]
            yield ("do", lambda t: ex.step(timeout=t))
        elif how == "apart":
            for name in self.names:
                yield ("do", lambda t, name=name: ex.push(name, grads[name], timeout=t))
            yield from self._pull()
        else:
            handles = []
            for name in self.names if how != "nb" else reversed(self.names):
                given = grads[name]
                if how == "written" and not isinstance(given, tuple):
                    given = yield from self._written(at, name, given)
                start = ("do", lambda t, name=name, given=given: ex.push_pull_nb(name, given, timeout=t))
                handles.append((yield start))
                if how == "push_pull":
                    yield ("wait", handles.pop())
            for handle in handles:
                yield ("wait", handle)
        self.steps += 1
        self._note_params(at)
        self.facts.note(f"{at} version", [version_of(ex), list(ex.late)])

    def _written(self, at: str, name: str, grad: Any) -> Program:
        """None, when the update is in its slot; the update itself where this rank has none, as below a tree's root."""
        try:
            slot = yield ("do", lambda t: self.ex.gradient(name, timeout=t))
        except hpcomm.NotSupported as wrong:
            self.facts.error(f"{at} slot of {name}", wrong)
            return grad
        slot[...] = bits_as(grad, slot)
        return None

    def _refused(self, at: str) -> Program:
        """A push of NaN sends nothing."""
        for name, shape in self.job["keys"].items():
            grad = np.full(shape, np.nan, F32)
            try:
                yield ("do", lambda t, name=name, grad=grad: self.ex.push_nb(name, grad, timeout=t))
            except hpcomm.InvalidArgument as wrong:
                self.facts.error(f"{at} NaN in {name}", wrong)

    def _pull(self) -> Program:
        for name in self.names:
            yield ("wait", (yield ("do", lambda t, name=name: self.ex.pull_nb(name, timeout=t))))

    def op_split(self, at: str, step: int, between: list[str], end: str, scale: float, nothing: list[int]) -> Program:
        if not self._works(None):
            return
        ex, rank = self.ex, self.number
        grads = {name: update(self.job, name, rank, step) for name in self.names}
        if end == "step":
            yield ("do", lambda t: ex.step(grads, timeout=t))
            self._note_params(at)
            return
        folds = []
        for name in reversed(self.names):
            given = {"nothing": True} if rank in nothing else {"grad": grads[name]}
            folds.append(
                (yield ("do", lambda t, name=name, given=given: two_calls(ex).fold_nb(name, timeout=t, **given)))
            )
        for fold in folds:
            yield ("wait", fold)
        for call in between:
            for name in self.names:
                asked = ("do", lambda t, name=name, call=call: getattr(two_calls(ex), f"{call}_nb")(name, timeout=t))
                found = yield ("wait", (yield asked))
                self.facts.array(f"{at} {call} {name}", np.float64(found) if call == "squares" else found)
        ends = []
        for name in self.names:
            args = (name,) if end == "skip" else (name, scale)
            ends.append((yield ("do", lambda t, args=args: getattr(two_calls(ex), f"{end}_nb")(*args, timeout=t))))
        for handle in ends:
            yield ("wait", handle)
        self._note_params(at)

    def op_set(self, at: str, changes: dict[str, float]) -> Program:
        if self.ex.params:
            self.ex.set(**changes)
        return
        yield

    def op_pull(self, at: str) -> Program:
        if self.ex.params:
            yield from self._pull()
            self._note_params(at)

    def op_barrier(self, at: str) -> Program:
        yield ("all", self.ctx.barrier)

    def op_save(self, at: str) -> Program:
        yield ("all", self.ctx.barrier)
        self.saved = yield ("state", self.ex)
        self.saved = {name: np.copy(value) if hasattr(value, "dtype") else value for name, value in self.saved.items()}
        for name, value in sorted(self.saved.items()):
            if isinstance(value, np.ndarray):
                self.facts.array(f"{at} {name}", value if value.dtype.kind in "fiub" else np.array(str(value.tolist())))
            else:
                self.facts.note(f"{at} {name}", str(value))
        yield ("all", self.ctx.barrier)

    def op_load(self, at: str) -> Program:
        yield ("all", lambda: self.ex.load_state_dict(self.saved))
        self._note_params(at)

    def op_die(self, at: str, rank: int) -> Program:
        yield ("die", rank)
        return self.dead

    def op_close(self, at: str, rank: int) -> Program:
        """One rank has no more steps; the others go on."""
        return self.number == rank
        yield

    def op_recover(self, at: str) -> Program:
        """Those that are left go on by a new exchange, whose owners keep what they have."""
        found = yield ("all", lambda: hpcomm.recover(self.ex, survivors=True))
        self.old, self.ex = self.ctx, found.exchange
        self.ctx = self.ex.context
        self.facts.note(f"{at} clock", [found.clock, list(found.lost)])
        self._note_params(at)


def bits_as(value: Any, slot: Any) -> Any:
    """value in the dtype of a slot; NumPy has no bfloat16, and hpcomm gives its bits then."""
    if slot.dtype == np.uint16:
        return (np.ascontiguousarray(value).view(np.uint32) >> 16).astype(np.uint16).reshape(slot.shape)
    return value
