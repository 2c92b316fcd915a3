"""Checks before local steps begin: ranks tell each other whether they refuse their arguments, and whether all gave the
same."""

import hashlib

import numpy as np

from .. import optim
from ..codec import Products
from ..context import Context
from ..errors import ConfigError, InvalidArgument, PeerFailed
from ..exchange import Exchange
from ..optim import Assign, Average
from .fragments import Fragments, fragments_of
from .schedule import Schedule

_DIGEST = 16  # bytes of a digest of the settings
_TOLD = 400  # bytes of a refusal's text for the other ranks


def settings(ex: Exchange, every: int, fragments: object, delay: int, mix: float) -> tuple[Schedule, Fragments]:
    """Returns the schedule, and the fragments of the exchange's keys."""
    sizes = {name: int(np.prod(value.shape)) for name, value in ex.params.items()}
    if not sizes:
        raise InvalidArgument(
            f"rank {ex.context.rank} only serves, and trains nothing: local_steps needs workers alone"
        )
    found = fragments_of(sizes, fragments)
    return Schedule(every, len(found), delay, mix), found


def check_exchange(ex: Exchange, schedule: Schedule, fragments: Fragments) -> None:
    """Raises InvalidArgument if the exchange cannot take the updates of local steps."""
    refused = _refuses_updates(ex)
    if refused is not None:
        raise InvalidArgument(f"local steps: {refused}")
    facts = ex._state.facts
    held = next((name for name in ex.codecs if facts[name].keeps_back), None)
    if schedule.mix < 1 and held is not None:
        raise InvalidArgument(
            f"local steps: mix is {schedule.mix}, and the codec of {held!r}, {ex.codecs[held]!r}, keeps a residual: "
            "values held back would count twice, in the residual and in this rank's parameters: give mix=1, or a "
            'codec without a residual such as Float4() or "bfloat16"'
        )
    schemes = [{facts[name].scheme for name in names} for names in fragments]
    together = sum(map(len, schemes)) > len(set().union(*schemes))
    if len(fragments) > 1 and ex._state.any.jumps and together:
        raise InvalidArgument(
            f"local steps: the exchange has a quorum, and counts the steps of all {len(fragments)} fragments as one: "
            "make it with groups=, the names of each fragment's keys"
        )


def _refuses_updates(ex: Exchange) -> str | None:
    """Returns a sentence if the trainer cannot push single keys at any time in this exchange; otherwise None."""
    made = ex._state.made
    if not all(one.topology.updates_of == "all" for one in made.schemes):
        return (
            "the exchange is on a graph, or its hosts have models of their own: give a topology in which the updates "
            "of all ranks count alike, such as ParameterServer, Hierarchy or PeerToPeer"
        )
    if made.engine.split:
        return "the exchange folds and applies in two calls: leave out split=True"
    for name, rule in optim.by_key(made.rule, ex.codecs).items():
        if isinstance(rule, Assign | Average):
            kind = type(rule).__name__
            return f"key {name!r} has the rule {kind}, by which an update would become the parameters: give SGD(lr=1)"
    for name, codec in ex.codecs.items():
        if isinstance(codec, Products) or codec.name == "factors":
            return f"key {name!r} goes as {codec!r}, and an update of many steps is no product of few vectors"
    return None


def digest_of(schedule: Schedule, fragments: Fragments) -> bytes:
    told = (schedule.every, schedule.delay, schedule.mix, fragments)
    return hashlib.blake2b(repr(told).encode(), digest_size=_DIGEST).digest()


def tell(
    ctx: Context,
    wrong: Exception | None,
    digest: bytes = bytes(_DIGEST),
    *,
    what: str = "local steps",
    same: str = "every, delay, mix or other fragments",
) -> None:
    """Tells all ranks the digest of this rank's settings, or why this rank refuses. Collective.

    Args:
        wrong: the error of this rank; None if it has none.
        digest: the digest, of 16 bytes.
        what, same: for errors, what begins, and the settings that must be the same on all ranks.

    Raises:
        InvalidArgument: another rank refuses.
        ConfigError: ranks have different settings.
    """
    sentence = b"" if wrong is None else (str(wrong) or type(wrong).__name__).encode()
    every = ctx.allgather(digest + sentence[:_TOLD].ljust(_TOLD, b"\0"))
    if wrong is not None:
        return
    for rank, part in enumerate(every):
        if told := part[_DIGEST:].rstrip(b"\0").decode("utf-8", "replace"):
            raise InvalidArgument(f"rank {rank} refuses {what}: {told}")
    for rank, part in enumerate(every):
        if part != every[0]:
            raise ConfigError(f"{what}: rank {rank} has another {same} than rank 0: give the same")


def ended_early(ctx: Context, failed: PeerFailed, made: str, at: int, cure: str) -> PeerFailed:
    """Returns the failure with a text about steps, if ranks have only ended or closed their exchange; otherwise the
    failure unchanged.

    Args:
        made: how many steps the ended ranks made, as text such as " (5)"; "" if unknown.
        at: the step of this rank.
        cure: the calls that allow unequal numbers of steps.
    """
    states = [ctx.peers[rank].state for rank in failed.ranks]
    if failed.left or not states or not {*states} <= {"left", "alive"}:
        return failed
    *most, last = map(str, failed.ranks)
    who, have = (f"ranks {', '.join(most)} and {last}", "have") if most else (f"rank {last}", "has")
    return PeerFailed(
        f"rank {ctx.rank}: {failed.op}: {who} {have} made fewer steps{made} and {have} ended, rank {ctx.rank} is at "
        f"step {at}: use {cure} for unequal numbers of batches",
        ranks=failed.ranks,
        op=failed.op,
        waiting_for=failed.waiting_for,
    )
