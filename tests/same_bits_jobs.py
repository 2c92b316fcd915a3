"""Random jobs for same_bits.py: a job is drawn from a seed, is plain JSON, and needs no build of hpcomm to be drawn.

The families follow the members of the array in csrc/discipline/discipline.c, so that each of them gets its part; two
more mix them: "mixed" gives keys schemes of their own, and "any" puts topology, consistency and options together at
random, most of which is refused by a sentence.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]
Lot = random.Random

SHAPES: list[list[int]] = [[], [1], [7], [300], [33, 5], [40, 10], [17, 3, 5], [1000, 3], [70, 65], [4099]]
MATRICES = [[33, 5], [40, 10], [24, 16], [70, 65], [9, 48]]


# ---- topologies ------------------------------------------------------------------------------------------------------


def servers(lot: Lot, n: int, **more: Any) -> list[Any]:
    """["servers", placement, ranks or their number, further arguments]."""
    placement = lot.choice(["CS", "CS", "CC", "NCC", "NCS"] if n > 1 else ["CS", "CC"])
    which: Any = None
    if placement == "CS" and lot.random() < 0.4:
        which = sorted(lot.sample(range(n), lot.randint(1, n)))
    if placement == "NCS":
        which = sorted(lot.sample(range(n), lot.randint(1, n - 1)))
    if placement in ("CC", "NCC") and lot.random() < 0.3:
        which = [lot.randrange(n)]
    if lot.random() < 0.2:
        more["affinity"] = "worker"
    return ["servers", placement, which, more]


def working(topology: list[Any], n: int) -> list[int]:
    """The ranks that push."""
    if topology[0] != "servers" or topology[1] in ("CS", "CC"):
        return list(range(n))
    return [rank for rank in range(n) if rank not in (topology[2] or [0])]


def receivers(lot: Lot, n: int) -> list[Any]:
    more: dict[str, Any] = {"apply_at": lot.choice(["receivers", "both"])}
    if lot.random() < 0.3:
        more["tree"] = lot.choice([1, 2])
    return servers(lot, n, **more)


def hosts_of(lot: Lot, n: int) -> list[list[int]]:
    """The ranks of each of at least two hosts, where there are two ranks."""
    count = lot.randint(min(2, n), max(2, n - 1)) if n > 1 else 1
    ranks = list(range(n))
    if lot.random() < 0.3:
        lot.shuffle(ranks)
    cuts = sorted(lot.sample(range(1, n), count - 1)) if n > 1 else []
    return [sorted(ranks[start:end]) for start, end in zip([0, *cuts], [*cuts, n], strict=True)]


def joined(groups: list[list[int]]) -> list[int]:
    return list(itertools.chain(*groups))


def hierarchy(lot: Lot, n: int, *, ring: bool = True, away: bool = False) -> list[Any]:
    hosts = hosts_of(lot, n)
    more: dict[str, Any] = {}
    if len(hosts) > 2 and lot.random() < 0.4:
        cut = lot.randint(1, len(hosts) - 1)
        more["racks"] = [joined(hosts[:cut]), joined(hosts[cut:])]
    if lot.random() < 0.3:
        more["leaders"] = [lot.choice(host) for host in hosts]
    if ring and lot.random() < 0.3:
        more["top"] = "ring"
    if away and lot.random() < 0.4:
        more["apply_at"] = lot.choice(["receivers", "both"])
    return ["hosts", hosts, more]


def graph(lot: Lot, n: int) -> list[Any]:
    """[name, arguments]: of hpcomm.topology."""
    found = [["ring", {}], ["complete", {}], ["root_expander", {}], ["exponential", {}], ["ring", {"directed": False}]]
    if n > 1:
        found += [["star", {"center": lot.randrange(n)}], ["chain", {"directed": False}], ["chain", {}]]
    if n == 4:
        found += [["hypercube", {}]]
    return lot.choice(found)


def graphs(lot: Lot, n: int, *, phases: bool) -> list[Any]:
    if not phases or lot.random() < 0.6:
        return ["graphs", [graph(lot, n)]]
    if lot.random() < 0.5:
        return ["graphs", [graph(lot, n) for _ in range(lot.randint(2, 3))]]
    return ["graphs", [lot.choice([["one_peer_exponential", {}], ["random_matchings", {"phases": 3}]])]]


def weighted(lot: Lot, n: int) -> list[Any]:
    """A graph without phases, with weights of its own now and then."""
    found = graphs(lot, n, phases=False)
    return found if lot.random() < 0.8 else ["graphs", [["weighted", {"seed": lot.randrange(1000)}]]]


def peers(lot: Lot, n: int, *, passing: bool) -> list[Any]:
    if passing:
        return ["peers", lot.choice([["ring", {}], ["ring", {"directed": False}], ["exponential", {}]]), True]
    return ["peers", None if lot.random() < 0.6 else graph(lot, n), False]


# ---- codecs, rules, keys ---------------------------------------------------------------------------------------------


def codec(lot: Lot, *, pairs: bool, arrays: bool = False) -> Any:
    found: list[Any] = ["float16", "bfloat16"]
    if not arrays:
        values = lot.choice(["float32", "float16", "bfloat16"])
        found += [
            ["TopK", [lot.choice([0.05, 0.3, 1.0])], {"values": values, "kernel": "c"}],
            ["Threshold", [lot.choice([0, 0.5, 2.0])], {"kernel": "c", "decays": lot.random() < 0.5}],
            ["OneBit", [lot.choice([None, 16, 100])], {}],
            ["Float4", [lot.choice([16, 100, 256])], {}],
            ["ErrorFeedback", [lot.choice(["float16", "bfloat16", ["Float4", [64], {}]])], {}],
        ]
    if pairs:
        found += [["Factors", [lot.randint(1, 4)], {"values": lot.choice(["float32", "bfloat16"])}]] * 3
        found += [["Factors", [lot.randint(1, 4)], {"blocks": lot.randint(1, 3)}]]
    return lot.choice(found)


def rule(lot: Lot) -> list[Any]:
    return lot.choice(
        [
            ["SGD", {"lr": lot.choice([1.0, 0.5, 0.1])}],
            ["SGD", {"lr": 0.25, "weight_decay": 0.125}],
            ["Momentum", {"lr": 0.5, "momentum": 0.5}],
            ["Nesterov", {"lr": 0.1, "momentum": 0.9}],
            ["Adam", {"lr": 0.05}],
            ["AdamW", {"lr": 0.1}],
            ["Dual", {"lr": 0.5}],
        ]
    )


def keys(lot: Lot) -> dict[str, list[int]]:
    count = lot.choice([1, 1, 2, 2, 3, 4])
    return {f"k{i}": lot.choice(SHAPES) for i in range(count)}


# ---- families --------------------------------------------------------------------------------------------------------


def _ssp(lot: Lot) -> list[Any]:
    return ["SSP", lot.choice([1, 1, 1, 2, 2, 3, 5])]


def _quorum(lot: Lot, inputs: int, **more: Any) -> list[Any]:
    """["quorum", how many, grace]: as a rule fewer than there are; a grace None is learned from the clock."""
    q = lot.randint(1, max(1, inputs - 1)) if lot.random() < 0.9 else inputs
    return ["quorum", q, lot.choice([0, 0, 0, 0, "inf", None]), more]


def _bsp(lot: Lot, job: Job) -> None:
    n = job["n"]
    kind = lot.choice(["servers"] * 3 + ["hosts"] * 2 + ["receivers", "tree", "hostgraph"])
    if kind == "servers":
        job["topology"] = servers(lot, n)
    elif kind == "hosts":
        job["topology"] = hierarchy(lot, n, away=True)
    elif kind == "receivers":
        job["topology"] = receivers(lot, n)
    elif kind == "tree":
        job["topology"] = ["tree", lot.choice([1, 2, 3]), lot.randrange(n)]
    else:
        hosts = hosts_of(lot, n)
        job["topology"], job["rule"] = ["hostgraph", graph(lot, len(hosts)), hosts], ["Average", {}]
    if kind in ("hosts", "servers") and lot.random() < 0.1:
        job["shared_params"] = True
    if kind != "tree" and lot.random() < 0.15:
        job["consistency"] = ["SSP", 0]


def _split(lot: Lot, job: Job) -> None:
    make = lot.choice([servers, servers, hierarchy, receivers])
    job["topology"], job["split"] = make(lot, job["n"]), True


def _split_peers(lot: Lot, job: Job) -> None:
    job["topology"], job["split"] = peers(lot, job["n"], passing=False), True


def _async(lot: Lot, job: Job) -> None:
    job["topology"], job["consistency"] = servers(lot, job["n"]), ["ASYNC"]


def _server_ssp(lot: Lot, job: Job) -> None:
    job["topology"], job["consistency"] = servers(lot, job["n"]), _ssp(lot)


def _updates_ssp(lot: Lot, job: Job) -> None:
    job["topology"], job["consistency"] = receivers(lot, job["n"]), _ssp(lot)


def _groups(lot: Lot, job: Job) -> None:
    job["topology"] = hierarchy(lot, job["n"], ring=False)
    job["consistency"] = lot.choice([["ASYNC"], _ssp(lot)])


def _of_quorum(lot: Lot, job: Job) -> None:
    job["topology"] = servers(lot, job["n"])
    job["consistency"] = _quorum(lot, len(working(job["topology"], job["n"])))
    if len(job["keys"]) > 1 and lot.random() < 0.3:
        names = list(job["keys"])
        job["groups"] = [names[:1], names[1:]]


def _groups_quorum(lot: Lot, job: Job) -> None:
    job["topology"] = hierarchy(lot, job["n"], ring=False)
    outer = job["topology"][2].get("racks") or job["topology"][1]
    job["consistency"] = _quorum(lot, len(outer))


def _graph_bsp(lot: Lot, job: Job) -> None:
    job["topology"] = graphs(lot, job["n"], phases=True) if lot.random() < 0.5 else weighted(lot, job["n"])
    _models(lot, job)


def _notify_ack(lot: Lot, job: Job) -> None:
    _graph_bsp(lot, job)
    job["consistency"] = lot.choice([["NOTIFY_ACK"], ["NOTIFY_ACK"], ["SSP", 0]])


def _ssp_on_graph(lot: Lot, job: Job) -> None:
    job["topology"], job["consistency"] = weighted(lot, job["n"]), _ssp(lot)
    _models(lot, job)


def _graph_quorum(lot: Lot, job: Job) -> None:
    job["topology"] = ["graphs", [lot.choice([["complete", {}], ["ring", {"directed": False}], ["exponential", {}]])]]
    job["consistency"] = _quorum(lot, 2, waits_for="neighbours")
    _models(lot, job)


def _unflushed(lot: Lot, job: Job) -> None:
    job["topology"], job["consistency"] = weighted(lot, job["n"]), [lot.choice(["ASYNC", "BARRIER"])]
    _models(lot, job)


def _peers(lot: Lot, job: Job) -> None:
    job["topology"] = peers(lot, job["n"], passing=False)


def _peers_ssp(lot: Lot, job: Job) -> None:
    job["topology"], job["consistency"] = peers(lot, job["n"], passing=False), _ssp(lot)


def _passing_peers(lot: Lot, job: Job) -> None:
    job["topology"] = peers(lot, job["n"], passing=True)


def _passing_peers_ssp(lot: Lot, job: Job) -> None:
    job["topology"], job["consistency"] = peers(lot, job["n"], passing=True), _ssp(lot)


def _models(lot: Lot, job: Job) -> None:
    """On a graph: averages of models, trained in place or not, or a rule for averages of updates."""
    job["reduce"] = "mean"
    if lot.random() < 0.6:
        job["rule"], job["in_place"] = ["Average", {}], job["consistency"][0] != "quorum" and lot.random() < 0.4


FAMILIES: dict[str, Callable[[Lot, Job], None]] = {
    "bsp": _bsp,
    "split": _split,
    "split_peers": _split_peers,
    "async": _async,
    "server_ssp": _server_ssp,
    "updates_ssp": _updates_ssp,
    "groups": _groups,
    "quorum": _of_quorum,
    "groups_quorum": _groups_quorum,
    "graph_bsp": _graph_bsp,
    "notify_ack": _notify_ack,
    "ssp": _ssp_on_graph,
    "graph_quorum": _graph_quorum,
    "unflushed": _unflushed,
    "peers": _peers,
    "peers_ssp": _peers_ssp,
    "passing_peers": _passing_peers,
    "passing_peers_ssp": _passing_peers_ssp,
}
LEAST_RANKS = {"groups": 3, "groups_quorum": 3, "graph_quorum": 3, "passing_peers": 4, "passing_peers_ssp": 4}
TWO_RANKS = ("async", "server_ssp", "updates_ssp", "quorum", "peers", "peers_ssp", "split_peers", "ssp")


def _mixed(lot: Lot, job: Job) -> None:
    """A scheme for each key, of families whose ranks all work."""
    topologies, consistencies, rules = {}, {}, {}
    if len(job["keys"]) < 2:
        job["keys"] = {"k0": lot.choice(SHAPES), "k1": lot.choice(SHAPES)}
    for name in job["keys"]:
        one: Job = {**job, "consistency": ["BSP"]}
        family = lot.choice([name for name in FAMILIES if not name.startswith(("split", "groups"))])
        FAMILIES[family](lot, one)
        if one["topology"][0] == "servers" and one["topology"][1] in ("NCC", "NCS"):
            one["topology"] = ["servers", "CS", None, {}]
        topologies[name], consistencies[name], rules[name] = one["topology"], one["consistency"], one["rule"]
    job.update(topology={"by key": topologies}, consistency={"by key": consistencies}, rule={"by key": rules})


def _any(lot: Lot, job: Job) -> None:
    """Parts of two families, and options at random."""
    one, other = (lot.choice(list(FAMILIES)) for _ in range(2))
    beside: Job = dict(job)
    FAMILIES[one](lot, job)
    FAMILIES[other](lot, beside)
    job["consistency"] = beside["consistency"]
    job["split"] = lot.random() < 0.3
    job["in_place"] = lot.random() < 0.2
    job["shared_params"] = lot.random() < 0.2
    job["rule"] = lot.choice([job["rule"], beside["rule"], rule(lot)])


# ---- the job ---------------------------------------------------------------------------------------------------------


def draw(seed: int) -> Job:
    """The job of a seed: its number of ranks, the arguments of its exchange, and what its ranks do."""
    lot = random.Random(seed)
    family = list(FAMILIES)[seed % len(FAMILIES)] if lot.random() < 0.8 else lot.choice(["mixed", "any"])
    least = LEAST_RANKS.get(family, 2 if family in TWO_RANKS else 1)
    job: Job = {
        "seed": seed,
        "family": family,
        "n": max(least, lot.choice([1, 2, 2, 3, 3, 4, 4, 5, 6])),
        "consistency": ["BSP"],
        "rule": rule(lot),
        "keys": keys(lot),
        "reduce": lot.choice(["mean", "sum"]),
        "chunk_bytes": lot.choice([None, 256, 1024, 4096]),
        "depth": lot.choice([1, 1, 2, 3]),
        "cores": lot.choice([None, 1, 1, 2]),
    }
    {**FAMILIES, "mixed": _mixed, "any": _any}[family](lot, job)
    _driven(lot, job)
    _exact(lot, job)
    if not job.get("is_exact"):
        _coded(lot, job)
    if lot.random() < 0.1:
        job["check_finite"] = True
    job["ops"] = _ops(lot, job)
    if job["drive"] == "turns" and any(op[0] in ("save", "load", "barrier") for op in job["ops"]):
        job["turns"]["drains"] = -1  # how often ranks look while all call together is no fact: no event waits then
    return job


def _exact(lot: Lot, job: Job) -> None:
    """Whole numbers, of which sums are exact in any order, for half of the jobs whose folds have no order."""
    job["is_exact"] = job["drive"] != "turns" and "BSP" not in job["consistency"] and lot.random() < 0.7
    job["whole"] = job["is_exact"] or lot.random() < 0.5
    if job["whole"] and "Dual" in job["rule"]:
        job["rule"] = ["SGD", {"lr": 1.0}]
    if job["whole"] and "graph" not in str(job["topology"]) and (job["is_exact"] or lot.random() < 0.7):
        job["reduce"] = "sum"
        if "by key" not in job["rule"]:
            job["rule"] = ["SGD", {"lr": lot.choice([1.0, 0.5])}]


def _coded(lot: Lot, job: Job) -> None:
    text = str(job["topology"])
    on_graph, summed = "graph" in text, "apply_at" in text or "'hosts'" in text or "tree" in text
    keeps = on_graph or "peers" in text  # parameters stay at their rank
    pieces = "BARRIER" not in str(job["consistency"]) and not (on_graph and "ASYNC" in str(job["consistency"]))
    if lot.random() < 0.45:
        job["codec"] = {}
        for name, shape in job["keys"].items():
            if lot.random() < 0.7:
                pairs = not on_graph and len(shape) == 2 and (not summed or lot.random() < 0.1)
                arrays = (on_graph and "Average" in str(job["rule"])) or (not pieces and lot.random() < 0.9)
                job["codec"][name] = codec(lot, pairs=pairs, arrays=arrays)
    if lot.random() < (0.01 if keeps else 0.15):
        job["codec_out"] = {name: lot.choice(["float16", "bfloat16"]) for name in job["keys"] if lot.random() < 0.7}
    if job["family"] in ("peers", "split_peers", "bsp", "passing_peers", "split") and lot.random() < 0.15:
        name = next(iter(job["keys"]))
        job["keys"][name] = lot.choice(MATRICES)
        job["codec"] = {**job.get("codec", {}), name: ["Factors", [lot.randint(1, 4)], {}]}


def _driven(lot: Lot, job: Job) -> None:
    """Who calls: one thread that gives the ranks turns, drawn by the seed; a thread for each rank; or processes. Bits
    of disciplines that take updates as they come repeat in turns alone."""
    is_free = any(word in str(job["consistency"]) for word in ("ASYNC", "BARRIER", "SSP", "quorum"))
    drive = lot.choice(["turns"] * (14 if is_free else 4) + ["threads"] * 3 + ["processes"])
    job["drive"] = drive
    if drive == "turns":
        job["transport"] = lot.choice(["shm", "shm", "shm", "loop"])
        job["progress"] = "inline"
        job["turns"] = {
            "seed": lot.randrange(1 << 30),
            "drains": lot.choice([0, 0, 0, 1, -1]),  # rounds in which all work after each call; -1: until all is done
            "pace": [lot.choice([1, 1, 3, 10]) for _ in range(job["n"])],
        }
        for told in consistencies(job):
            if told[0] == "quorum" and told[2] is None:
                told[2] = 0  # no clock ends a grace here
    else:
        job["transport"] = lot.choice(["shm", "tcp", "loop"] if drive == "threads" else ["shm", "tcp"])
        job["progress"] = lot.choice(["inline", "inline", "thread"])
    job["loop_seed"] = 0
    if job["transport"] == "loop" and lot.random() < (0.3 if drive == "turns" else 0.8):
        job["loop_seed"] = lot.randrange(1, 1 << 30)


class Lag:
    """How far ranks, or groups of them, are apart under SSP(s): some leave out a step, as long as nobody waits."""

    def __init__(self, job: Job) -> None:
        topology = job["topology"]
        self.groups = [[rank] for rank in working(topology, job["n"])]
        if topology[0] == "hosts":
            self.groups = topology[2].get("racks") or topology[1]
        self.most = job["consistency"][1] if job["consistency"][0] == "SSP" else 0
        self.clocks = [0] * len(self.groups)

    def is_open(self) -> bool:
        return len(set(self.clocks)) > 1

    def level(self) -> None:
        self.clocks = [0] * len(self.groups)

    def some(self, lot: Lot) -> list[int] | None:
        """The ranks that make the next step."""
        absent = lot.randrange(len(self.groups)) if lot.random() < 0.4 else -1
        after = [clock + (i != absent) for i, clock in enumerate(self.clocks)]
        if max(after) - min(after) > self.most:
            absent, after = -1, [clock + 1 for clock in self.clocks]
        if max(after) - min(after) > self.most or absent < 0:
            self.clocks = after
            return None
        self.clocks = after
        return sorted(joined([group for i, group in enumerate(self.groups) if i != absent]))


LAGS = ("server_ssp", "groups", "updates_ssp", "peers_ssp", "passing_peers_ssp", "ssp")


def consistencies(job: Job) -> list[Any]:
    """Of all keys, or of each."""
    told = job["consistency"]
    return list(told["by key"].values()) if isinstance(told, dict) else [told]


HOWS = ["step", "push_pull", "nb", "nb", "apart", "written"]


def _ops(lot: Lot, job: Job) -> list[Any]:
    """What each rank does: [name, arguments]. Ranks may leave out steps where the consistency lets others go on."""
    n, text = job["n"], str(job["consistency"])
    steps = lot.choice([2, 3, 4, 6, 8, 8, 12])
    apart = "BSP" not in text and "NOTIFY" not in text and "'SSP', 0" not in text and "BARRIER" not in text
    free = ("ASYNC" in text or "quorum" in text) and "graphs" not in str(job["topology"]) and apart
    ops: list[Any] = []
    lag = Lag(job) if job["family"] in LAGS and not job["is_exact"] else None
    for step in range(steps):
        if job.get("split"):
            ops.append(_split_op(lot, job, step))
        else:
            who = _some(lot, job) if free and lot.random() < 0.4 else None
            who = lag.some(lot) if lag is not None else who
            how = "in place" if job.get("in_place") and lot.random() < 0.6 else lot.choice(HOWS)
            ops.append(["step", how, step, who])
        dice = lot.random()
        if lag is not None and lag.is_open() and job["family"] not in ("server_ssp", "groups"):
            continue  # a state is of one version: whoever asks for it waits for those that are behind
        if dice < 0.26 and (job["is_exact"] or "waits_for" in text):
            continue
        if dice < 0.08 and "Average" not in str(job["rule"]):
            ops.append(["set", {"lr": lot.choice([0.5, 0.25, 2.0])}])
        elif dice < 0.16:
            ops.append(["save"])
        elif dice < 0.22 and any(op[0] == "save" for op in ops):
            ops.append(["load"])
            if lag is not None:
                lag.level()
        elif dice < 0.26:
            ops.append(["barrier"])
        elif dice < 0.29:
            ops.append(["pull"])
    job["lags"] = lag is not None and lag.is_open()
    if job["is_exact"]:
        return ops
    if lot.random() < 0.2 and n > 1:
        at = lot.randint(1, len(ops))
        ops.insert(at, ["die", lot.randrange(n)])
        ops = ops[: at + 1] + [op for op in ops[at + 1 :] if op[0] in ("step", "split", "pull")]
        if lot.random() < 0.5 and job["drive"] != "processes":
            ops.append(["recover"])
            for step in range(steps, steps + 2):
                ops.append(_split_op(lot, job, step) if job.get("split") else ["step", lot.choice(HOWS), step, None])
    elif apart and lot.random() < 0.3:
        at = lot.randint(1, len(ops))
        ops.insert(at, ["close", lot.randrange(n)])
        ops = ops[: at + 1] + [op for op in ops[at + 1 :] if op[0] in ("step", "split", "pull", "set")]
    return ops


def _some(lot: Lot, job: Job) -> list[int] | None:
    """The ranks that make a step which others leave out: whole groups, and as many as a quorum needs."""
    n, topology, consistency = job["n"], job["topology"], job["consistency"]
    if isinstance(topology, dict):
        return None
    groups = [[rank] for rank in working(topology, n)]
    if topology[0] == "hosts":
        groups = topology[2].get("racks") or topology[1]
    least = 0
    if consistency[0] == "quorum":
        least = len(groups) if consistency[2] == "inf" else consistency[1]
    count = max(least, len(groups) - lot.choice([0, 1, 1, 2]))
    return sorted(joined(lot.sample(groups, max(0, min(count, len(groups))))))


def _split_op(lot: Lot, job: Job, step: int) -> list[Any]:
    """["split", step, what comes between, the end, scale, the ranks without an update]."""
    between = [lot.choice(["squares", "gather"]) for _ in range(lot.choice([0, 0, 1, 2]))]
    nothing = sorted(lot.sample(range(job["n"]), lot.randint(0, job["n"]))) if lot.random() < 0.2 else []
    end = lot.choice(["apply"] * 5 + ["skip", "step"])
    return ["split", step, between, end, lot.choice([1.0, 1.0, 0.5, 0.1]), nothing]
