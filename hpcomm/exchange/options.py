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
    """How an exchange makes the plan of its topology. All ranks give the same; Exchange checks it, and tells all ranks.

    Attributes:
        chunk_bytes: bytes of float32 a chunk, a multiple of 64 (PHub, section 3.2.3). None: as the keys, the number of
            the servers' cores and the hosts of the ranks say, which all ranks know. With servers 32 KiB and in a
            Hierarchy 64 KiB by shared memory and RDMA; where ranks use TCP each core of the servers gets an equal part
            of every key, in chunks of at most 256 KiB (down to 64 KiB where it would get fewer than four of all keys),
            and no key is cut into parts below 16 KiB. In a Tree 128 KiB, in a HostGraph 256 KiB; with codecs of
            pieces as many as leave each core of the servers eight chunks, from 32 KiB to 1 MiB; on a graph 256 KiB, or
            where several cores would get fewer than four of all keys half of it, and so on down to 32 KiB.
        depth: slots for gradients of a key, 1 to 32. Under ASYNC this many pushes of it may be pending; under BSP
            one, while the next gradient is written; under SSP with servers a push waits for a free slot. Where
            receivers or peers apply the rule the depth is at least staleness + 2 under SSP(s), and at least 6 under
            ASYNC, where a worker may be depth - 2 steps ahead of the slowest one. On a graph: updates on their way to
            a neighbour that has not folded them; at least staleness + 2, and with split at least 2; with in_place at
            most 31.
        codec: the encoding of gradients: "float32", "float16", "bfloat16", a value of hpcomm.codec such as
            TopK(0.01) or Factors(32), or "auto", which measures whether TopK(0.01) is faster; or a mapping from names
            of keys to these, and keys that it does not name are float32. Sums are float32. With a Plan it gives
            the arguments of codecs of pieces, which a plan does not hold.
        codec_out: the encoding of parameters from servers to workers, given likewise. With "float16" or
            "bfloat16" params stay float32 arrays (float16's largest number is 65504), of rounded values, the same bits
            on every worker; each server keeps a master in float32, to which updates are added, and which checkpoints
            hold. Not with shared_params, nor on a graph, where parameters stay at their rank.
        reduce: "mean" or "sum" of the workers' updates; under ASYNC every update counts in full, under SSP with servers
            each by its part of the mean.
        cores: of each server. None means as many as its host can spare for threads, beside the threads with which
            workers computed when they called init, and at least 1 for each of its interfaces; just that if a rank has
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
    """How an exchange works. All ranks give the same values; only progress and patience may differ. Exchange checks
    this, and tells all ranks.

    Attributes:
        in_place: on a graph whose rule is Average: the trainer trains params[name] where it lies, and a push without an
            array sends it: `w = ex.params["w"]`, then over and over `w -= lr * grad` and `w = ex.push_pull("w")`.
            Nothing is copied: the average is folded into another array while neighbours still read the model that was
            sent, and that one is read-only from then on. gradient(name) gives params[name]. Where a key has a 16-bit
            codec, pushes of all keys are copied or encoded, and params stay where they are. A key has one pending push.
        shared_params: the workers of a host read one copy of the parameters, and none may write it. Only with BSP. The
            ranks of a host must map each other's memory, by transport shm. Where hosts have several workers a rank of
            each host writes its copy: so with topology "auto" or a Hierarchy, not with "flat".
        check_finite: a push of NaN or Inf, or of a value too large for the wire, is refused, with key and rank.
        split: fold and apply are two calls (fold, apply, skip, gather and squares of Exchange): owners keep the mean in
            between, 4 bytes an element; peers, and ranks on a graph of one phase, keep the updates. BSP, with servers
            that all workers push to also with a quorum. On a graph any consistency, quorum and number of phases: each
            rank decides for its own parameters, and sees the mean that apply would apply. One update of a key is
            pending, whatever the depth. Or SSP(s) or ASYNC with servers or peers: then each worker keeps its own update
            until it applies it. Owners work for the keys that were given first.
        progress: who works for the chunks that this rank owns: "thread" (a thread for each core), "inline" (every wait
            of this rank's), or "auto": threads where the ranks that share CPUs with this one have one for each thread
            that they compute with and one for each core, else inline. A worker computes with torch.get_num_threads()
            threads if torch is imported, else with OMP_NUM_THREADS threads, else with one. With CPUs for all of them
            each thread is pinned to a separate CPU, until others keep it busy.
        groups: sequences of names of keys, each key in exactly one of them; None: all keys are one group. With a quorum
            versions are counted by group: a worker pushes each key of a group once for a version, and groups at
            different times. Without a quorum groups change nothing, as every key is counted by itself. The order of
            groups, and of names in them, says nothing.
        patience: pushes, pulls and steps that are given no timeout wait for patience times stats().usual, the learned
            high estimate of push latency (ASAP, section 5: a dynamic timeout by the time taken for the reduce); at
            least 1 s, and at most the context's default. None: the context's default.
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
    """The keywords that a preset with a given codec hands on to Exchange."""

    chunk_bytes: int | None
    depth: int
    reduce: Reduce
    split: bool
    progress: Progress


class Keywords(KeywordsButCodec, total=False):
    """The fields of PlanOptions and EngineOptions that Exchange takes one by one; the values have the others."""

    codec: Codecs | None


class MoreButCodec(KeywordsButCodec, total=False):
    """The same of Exchange's other arguments."""

    plan: Plan | PlanOptions | None
    engine: EngineOptions
    timeout: float | None


class More(Keywords, total=False):
    """The keywords that presets hand on to Exchange."""

    plan: Plan | PlanOptions | None
    engine: EngineOptions
    timeout: float | None


_PLAN = frozenset(field.name for field in fields(PlanOptions))
_ENGINE = frozenset(field.name for field in fields(EngineOptions))


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for a keyword that is no field, as Python does for one that is no parameter."""
    known = Keywords.__optional_keys__
    for name in keywords:
        if name not in known:
            raise apart("Exchange", name) or unexpected("Exchange", name, known)


def apart(call: str, name: str) -> TypeError | None:
    """The error of a field that is no keyword of call; None: no value has that field."""
    for value, field, names in (("PlanOptions", "plan", _PLAN), ("EngineOptions", "engine", _ENGINE)):
        if name in names:
            return TypeError(f"{call}() got {name!r} by itself: give {field}=hpcomm.{value}({name}=...)")
    return None


def plan_options(plan: object, keywords: Mapping[str, Any]) -> PlanOptions:
    """plan with the fields among the keywords; the defaults with these if plan is a Plan."""
    if not isinstance(plan, Plan | PlanOptions | None):
        raise InvalidArgument(f"plan is {plan!r}: must be a Plan or PlanOptions")
    base = plan if isinstance(plan, PlanOptions) else PlanOptions()
    given = {name: value for name, value in keywords.items() if name in _PLAN}
    return replace(base, **given)


def engine_options(engine: object, keywords: Mapping[str, Any]) -> EngineOptions:
    """engine with the fields among the keywords."""
    if not isinstance(engine, EngineOptions):
        raise InvalidArgument(f"engine is {engine!r}: must be EngineOptions")
    return replace(engine, **{name: value for name, value in keywords.items() if name in _ENGINE})
