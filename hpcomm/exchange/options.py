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
    """How an exchange makes the plan of its topology. Give the same on all ranks; Exchange checks this, and tells all
    ranks.

    Attributes:
        chunk_bytes: bytes of float32 in a chunk, a multiple of 64 (PHub, section 3.2.3). None: hpcomm chooses the size
            from the keys, the servers' cores and the hosts; all ranks choose alike:

            - servers, with shared memory or RDMA: 32 KiB; in a Hierarchy 64 KiB.
            - servers, with TCP: each server core gets an equal part of every key, of 16 KiB at least. Chunks have
              256 KiB; or half of it, and so on down to 64 KiB, until each core gets four chunks of all keys.
            - Tree: 128 KiB. HostGraph: 256 KiB.
            - a graph: 256 KiB. With several cores half of it, and so on down to 32 KiB, until each core gets four
              chunks of all keys.
            - any of these with codecs of pieces: 1 MiB, or half of it, and so on down to 32 KiB, until each core gets
              eight chunks of all keys.
        depth: slots for gradients of a key, 1 to 32. It allows this many pending pushes of a key under ASYNC; under BSP
            one, while the trainer writes the next gradient; under SSP with servers a push waits for a free slot. If
            receivers or peers apply the rule, depth must be at least staleness + 2 under SSP(s), and at least 6 under
            ASYNC, where a worker may be depth - 2 steps ahead of the slowest one. On a graph it is the number of
            updates that a neighbour may not have folded yet: at least staleness + 2, with split at least 2, with
            in_place at most 31.
        codec: the encoding of gradients: "float32", "float16", "bfloat16", a value of hpcomm.codec such as TopK(0.01)
            or Factors(32), or "auto", which measures whether TopK(0.01) is faster; or a mapping from names of keys to
            these, in which the default is float32. Sums are float32. With a Plan, codec gives the arguments of codecs
            of pieces, which a plan lacks.
        codec_out: the encoding of parameters from servers to workers, given in the same way. With "float16" or
            "bfloat16" params stay float32 arrays, with rounded values (float16's largest number is 65504) that are the
            same bits on every worker. Each server adds updates to a float32 master, which checkpoints hold. Refused
            with shared_params, and on a graph, where parameters stay at their rank.
        reduce: "mean" or "sum" of the workers' updates. Under ASYNC every update is applied with weight 1; under SSP
            with servers each with its weight in the mean or sum.
        cores: of each server. None: as many as its host has CPUs for beside the threads with which workers computed
            when they called init, and at least 1 for each of its interfaces; exactly 1 for each if any rank has
            progress="inline".
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
    """How an exchange works. Give the same on all ranks; only progress and patience may differ. Exchange checks this,
    and tells all ranks.

    Attributes:
        in_place: on a graph with the rule Average: the trainer trains params[name] itself, and a push without an array
            sends it: `w = ex.params["w"]`, then repeatedly `w -= lr * grad` and `w = ex.push_pull("w")`. Nothing is
            copied: the average is folded into another array while neighbours still read the pushed one, which is
            read-only from then on. gradient(name) returns params[name]. If any key has a 16-bit codec, pushes of all
            keys are copied or encoded, and params stay the same arrays. A key has one pending push.
        shared_params: the workers of a host read one copy of the parameters, which none may write. Only under BSP. The
            ranks of a host must map each other's memory, by transport shm. If hosts have several workers, a rank of
            each host writes its copy: this needs topology "auto" or a Hierarchy, not "flat".
        check_finite: refuse a push of NaN or Inf, or of a value too large for the wire; the error names key and rank.
        split: fold and apply are two calls (fold, apply, skip, gather and squares of Exchange.split). Between the
            two, owners keep the mean, 4 bytes an element; peers, and ranks on a graph of one phase, keep the updates.
            Allowed:

            - BSP; also with a quorum if all workers push to the servers directly.
            - a graph with any consistency, quorum and number of phases: each rank decides for its own parameters, and
              gather and squares show the mean that apply would apply.
            - SSP(s) or ASYNC with servers or peers: each worker keeps its own update until it applies it.

            Except with SSP(s) or ASYNC and servers or peers one update of a key is pending, whatever the depth. Owners
            work first for the keys that were given first.
        progress: who works for the chunks that this rank owns: "thread" (one thread for each core), "inline" (this
            rank's trainer, in every wait), or "auto": threads if the ranks that share CPUs with this one have a CPU for
            each thread with which they compute and for each core, otherwise inline. A worker counts as computing with
            torch.get_num_threads() threads if torch is imported, otherwise with OMP_NUM_THREADS, otherwise with one. If
            there are CPUs for all of them, each thread is pinned to a separate CPU, until others keep that busy.
        groups: sequences of names of keys, each key in exactly one; None: one group of all keys. With a quorum versions
            are counted by group: a worker pushes each key of a group once for a version, and may push groups at
            different times. Without a quorum groups change nothing, as every key is counted by itself. The order of
            groups and names has no effect.
        patience: a push, pull or step without a timeout waits for patience times stats().usual, a high estimate of push
            latency (ASAP, section 5: a dynamic timeout by the time taken for the reduce); at least 1 s, and at most the
            context's default. None: the context's default.
    """

    in_place: bool = False
    shared_params: bool = False
    check_finite: bool = False
    split: bool = False
    progress: Progress = "auto"
    patience: float | None = None
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
    """The fields of PlanOptions and EngineOptions that Exchange also takes as keywords; the other fields need the
    values."""

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
    """Raises TypeError for a keyword that is no field, as Python does for an unknown parameter."""
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
    """Returns plan with the fields among the keywords; if plan is a Plan, the defaults with these."""
    if not isinstance(plan, Plan | PlanOptions | None):
        raise InvalidArgument(f"plan is {plan!r}: must be a Plan or PlanOptions")
    base = plan if isinstance(plan, PlanOptions) else PlanOptions()
    given = {name: value for name, value in keywords.items() if name in _PLAN}
    return replace(base, **given)


def engine_options(engine: object, keywords: Mapping[str, Any]) -> EngineOptions:
    """Returns engine with the fields among the keywords."""
    if not isinstance(engine, EngineOptions):
        raise InvalidArgument(f"engine is {engine!r}: must be EngineOptions")
    return replace(engine, **{name: value for name, value in keywords.items() if name in _ENGINE})
