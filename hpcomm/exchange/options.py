"""The options of an exchange as values: how its plan is made, and how it works."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

from ..codec import Codecs, name_of
from ..consistency import Consistency
from ..errors import InvalidArgument
from ..plan import Plan
from ..words import unexpected

Reduce = Literal["mean", "sum"]
Progress = Literal["auto", "thread", "inline"]
Consistencies = Consistency | Mapping[str, Consistency]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options for making an exchange's plan from its topology. All ranks must give the same values; otherwise
    Exchange raises on every rank.

    Attributes:
        chunk_bytes: bytes of float32 in a chunk, a multiple of 64 (PHub, section 3.2.3). None: hpcomm chooses the size
            from the topology, the keys, the servers' cores and the hosts; all ranks choose alike:

            - servers, with shared memory or RDMA: 32 KiB; in a Hierarchy 64 KiB.
            - servers, with TCP: each core gets an equal part of every key, in parts of at least 16 KiB. A chunk has at
              most 256 KiB; this maximum is halved, down to 64 KiB, until each core gets four chunks of all keys.
            - a Tree: 128 KiB. A HostGraph: 256 KiB.
            - a graph: 256 KiB; with several cores halved, down to 32 KiB, until each core gets four chunks of all keys.
            - servers or a Hierarchy, with codecs of pieces: 1 MiB, halved down to 32 KiB until each core gets eight
              chunks of all keys.
        depth: the number of slots for gradients of a key, 1 to 32. Under ASYNC a key may have depth pending pushes.
            Under BSP it may have one; with depth 2 the trainer can write the next gradient meanwhile. Under SSP with
            servers a push waits for a free slot. If receivers or peers apply the rule, hpcomm raises depth to
            staleness + 2 under SSP(s), and to 6 under ASYNC, where a worker may be depth - 2 steps ahead of the slowest
            worker. On a graph a slot is in use until the neighbours have folded its update; hpcomm raises depth to
            staleness + 2, or with split to 2. With in_place depth must be at most 31.
        codec: the encoding of gradients: "float32", "float16", "bfloat16", a value of hpcomm.codec such as TopK(0.01)
            or Factors(32), or "auto", which measures whether TopK(0.01) is faster; or a mapping from names of keys to
            these, where keys that it does not name are float32. Sums are float32. With an earlier Plan, give the plan's
            codecs here again: a Plan does not hold the arguments of codecs of pieces.
        codec_out: the encoding of parameters from servers to workers, given likewise. With "float16" or "bfloat16"
            params stay float32 arrays, but their values are rounded, to the same bits on every worker; float16 turns
            values beyond 65504 into Inf. Each server adds updates to a float32 master, and checkpoints hold the
            masters. It is refused with shared_params and on graphs, where parameters do not travel.
        reduce: "mean" or "sum" of the workers' updates. Under ASYNC every update has weight 1 in both cases; under SSP
            with servers each has its weight in the mean or sum.
        cores: the number of cores of each server. None: as many as its host has CPUs to spare beside the threads with
            which workers computed when they called init, and at least one for each NIC of the server; exactly one for
            each NIC if any rank has progress="inline".
    """

    chunk_bytes: int | None = None
    depth: int = 1
    codec: Codecs | None = None
    reduce: Reduce = "mean"
    cores: int | None = None
    codec_out: Codecs | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", name_of(self.codec))
        object.__setattr__(self, "codec_out", name_of(self.codec_out))


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options for the work of an exchange. All ranks must give the same values, except for progress,
    patience and weight; otherwise Exchange raises on every rank.

    Attributes:
        in_place: the trainer trains params[name] where it lies, and a push without an array sends it. Only for graphs
            with the rule Average. Take `w = ex.params["w"]` once, then repeat `w -= lr * grad` and
            `w = ex.push_pull("w")`. Nothing is copied: the average is written into another array, which push_pull
            returns, while neighbours still read the array that was pushed; that one is read-only from then on.
            gradient(name) returns params[name]. If any key has a 16-bit codec, pushes of all keys are copied or
            encoded, and params stay the same arrays. A key may have one pending push.
        shared_params: the workers of a host read one copy of the parameters, which none may write. It needs BSP, and
            the ranks of a host must map each other's memory (transport shm). If hosts have several workers, one rank of
            each host must write the host's copy: this needs topology "auto" or a Hierarchy, not "flat".
        check_finite: a push of NaN, Inf or a value too large for the wire raises InvalidArgument, which names the key
            and the rank.
        split: fold and apply are two calls, those in Exchange.split (TwoCalls). Allowed:

            - BSP with servers, also with a quorum: between the calls owners keep the mean, 4 bytes an element. BSP with
              peers: each rank keeps the updates that have come to it.
            - a graph with any consistency, quorum and number of phases. Each rank decides for its own parameters. With
              one phase and BSP or NOTIFY_ACK a rank keeps the updates, otherwise the mean.
            - SSP(s) or ASYNC with servers or peers, and peers with a quorum. Each worker keeps its own update until it
              applies it.

            In the first two a key has one pending update, whatever depth is. Owners work on the keys first that come
            first in params.
        progress: who works on the chunks that this rank owns: "thread" (a thread for each core, which the exchanges of
            an Engine share), "inline" (this rank's trainer, in every wait of its contexts), or "auto": threads if the
            ranks that share CPUs with this one have a CPU for each thread that computes and for each core, otherwise
            inline. A worker counts as computing with torch.get_num_threads() threads if torch is imported, otherwise
            with OMP_NUM_THREADS, otherwise with one. If there are CPUs for all of them, each thread is pinned to a
            separate CPU, until others keep that CPU busy.
        groups: sequences of names of keys, with each key in exactly one of them. None: all keys are one group. With a
            quorum each group has its own versions: a worker pushes each key of a group once for a version, and may push
            different groups at different times. Without a quorum groups have no effect. The order of groups, and of
            names in a group, has no effect.
        patience: the timeout of pushes, pulls and steps that give none, as a multiple of stats().usual, the learned
            high estimate of push latency (ASAP, section 5: a dynamic timeout). The timeout is at least 1 s, and at most
            the context's default. None: the timeout is the context's default.
        weight: this exchange's share of the threads of cores beside the process's other exchanges, more than 0. If two
            exchanges with weights 1 and 3 both have work all the time, the threads fold three times as many bytes for
            the second. Without threads it has no effect: each wait works for its exchange.
    """

    in_place: bool = False
    shared_params: bool = False
    check_finite: bool = False
    split: bool = False
    progress: Progress = "auto"
    patience: float | None = None
    weight: float = 1.0
    groups: Sequence[Sequence[str]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _groups(self.groups))


def _groups(given: Any) -> tuple[tuple[str, ...], ...] | None:
    if given is None:
        return None
    found = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    wrong = next((one for one in found if isinstance(one, str) or not isinstance(one, Iterable)), None)
    if wrong is not None:
        raise InvalidArgument(
            f'groups has {wrong!r}: must be sequences of names of keys, such as [["w", "b"], ["head"]], or None'
        )
    return tuple(tuple(one) for one in found)


class KeywordsButCodec(TypedDict, total=False):
    """The keywords that a preset with a fixed codec passes on to Exchange."""

    chunk_bytes: int | None
    depth: int
    reduce: Reduce
    split: bool
    progress: Progress


class Keywords(KeywordsButCodec, total=False):
    """The fields of PlanOptions and EngineOptions that Exchange also takes as keywords; the other fields
    are given by plan= and engine=."""

    codec: Codecs | None


class MoreButCodec(KeywordsButCodec, total=False):
    """The keywords of KeywordsButCodec, and Exchange's other arguments."""

    plan: Plan | PlanOptions | None
    engine: EngineOptions
    timeout: float | None


class More(Keywords, total=False):
    """The keywords that presets pass on to Exchange."""

    plan: Plan | PlanOptions | None
    engine: EngineOptions
    timeout: float | None


_PLAN = frozenset(field.name for field in fields(PlanOptions))
_ENGINE = frozenset(field.name for field in fields(EngineOptions))


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for a keyword that Exchange does not take, as Python does for an unknown parameter."""
    known = Keywords.__optional_keys__
    for name in keywords:
        if name not in known:
            raise apart("Exchange", name) or unexpected("Exchange", name, known)


def apart(call: str, name: str) -> TypeError | None:
    """Returns the error for a field of PlanOptions or EngineOptions that call does not take as a keyword; None if there
    is no such field."""
    for value, field, names in (("PlanOptions", "plan", _PLAN), ("EngineOptions", "engine", _ENGINE)):
        if name in names:
            return TypeError(f"{call}() got {name!r} by itself: give {field}=hpcomm.{value}({name}=...)")
    return None


def plan_options(plan: object, keywords: Mapping[str, Any]) -> PlanOptions:
    """Returns plan with the fields in keywords replaced; if plan is a Plan or None, the defaults with these fields."""
    if not isinstance(plan, Plan | PlanOptions | None):
        raise InvalidArgument(f"plan is {plan!r}: must be a Plan or PlanOptions")
    base = plan if isinstance(plan, PlanOptions) else PlanOptions()
    given = {name: value for name, value in keywords.items() if name in _PLAN}
    return replace(base, **given)


def engine_options(engine: object, keywords: Mapping[str, Any]) -> EngineOptions:
    """Returns engine with the fields in keywords replaced."""
    if not isinstance(engine, EngineOptions):
        raise InvalidArgument(f"engine is {engine!r}: must be EngineOptions")
    return replace(engine, **{name: value for name, value in keywords.items() if name in _ENGINE})
