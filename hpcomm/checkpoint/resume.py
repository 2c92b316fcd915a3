"""How all ranks agree on the checkpoint from which a job continues."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._core import seconds
from ..context import Context
from ..errors import CheckpointError, ConfigError, InvalidArgument
from ..exchange import Exchange
from ..log import logger
from ..plan import Plan
from ..stage import whole
from . import files

Which = tuple[int, str]  # a checkpoint: its step and its run


class Resumable(NamedTuple):
    """A checkpoint for which this rank has all files that it needs. paths: the paths of these files. made: for each
    rank whose file says so, how many steps the exchange had made."""

    paths: list[Path]
    made: dict[int, int]


@dataclass(frozen=True)
class Restored:
    """The checkpoint that restore has loaded.

    Attributes:
        step: the step after which the checkpoint was saved.
        extra: the extra values that this rank's trainer gave. If all files were read (see restore), a rank that was not
            in that job, or that gave no values, gets the values of the lowest rank that gave some.
    """

    step: int
    extra: dict[str, Any]


def latest(directory: str | PathLike[str]) -> int | None:
    """Returns the step of the newest complete checkpoint in a directory that all ranks share, or None.

    It reads all files of this checkpoint and checks their checksums. It skips newer checkpoints that are torn or
    damaged, or whose files were saved at different steps, and logs a warning. It skips newer checkpoints that lack
    files without a warning, since ranks may still write them. Not collective: it asks no other rank. If each host has
    its own directory, only restore finds a checkpoint.

    Raises:
        CheckpointError: the directory cannot be read, or has a file in the format of a newer hpcomm.
    """
    folder = files.folder(directory)
    groups, torn = _grouped(folder)
    _warn(torn)
    for which, have in sorted(groups.items(), reverse=True):
        if set(have) != set(range(next(iter(have.values())).size)):
            continue
        try:
            made = _made(have.values())
            if len(set(made.values())) > 1:
                raise CheckpointError(_torn(which[0], made), path=folder)
            for label in have.values():
                files.read(folder / label.name)
        except CheckpointError as wrong:
            _warn([f"the checkpoint of step {which[0]} is left out: {wrong}"])
            continue
        return which[0]
    return None


def restore(
    ex: Exchange, directory: str | PathLike[str], step: int | None = None, *, timeout: float | None = None
) -> Restored | None:
    """Loads into an exchange, bit for bit, the newest checkpoint that every rank can load. Collective.

    If the plan is the one with which the checkpoint was saved, each rank reads only its own file, so each host may have
    its own directory. Under another plan (other ranks, servers or chunks) each rank reads all files and takes its own
    part; then all ranks must be able to read all files. A checkpoint whose files were saved at different steps of the
    job is skipped, with a warning.

    Args:
        directory: the directory that the Checkpointer was given.
        step: the step of an older checkpoint; None means the newest checkpoint.
        timeout: seconds to wait for the other ranks while they read their files.

    Returns:
        The step and the trainer's extra values. None on every rank if no checkpoint has ever been complete; if parts of
        one exist, a warning is logged.

    Raises:
        CheckpointError: all ranks cannot load a checkpoint of that step; its files were saved at different steps of the
            job; or a checkpoint was complete once, and none can be loaded any more. Every rank raises the same
            sentence, which tells what each rank has. Also raised if a directory cannot be read, or has a file in the
            format of a newer hpcomm.
        InvalidArgument: an argument of this rank is invalid. The other ranks raise CheckpointError with the same
            sentence.
        InvalidArgument, ConfigError: as Exchange.load_state_dict: the checkpoint has other keys or another rule.
    """
    return restore_checked(ex, directory, step, timeout, None)


def restore_checked(
    ex: Exchange,
    directory: str | PathLike[str],
    step: int | None,
    timeout: float | None,
    check: Callable[[dict[str, Any]], None] | None,
) -> Restored | None:
    """Does the work of restore. check: a function that is given the extra values, and raises an exception to refuse
    them. Then every rank raises it, and nothing has changed."""
    ctx = ex.context
    limit, folder = ctx.config.timeout, Path()
    mine: dict[Which, Resumable] = {}
    claimed, refused = 0, ""
    wrong: Exception | None = None
    try:
        limit = seconds(timeout, limit)
        folder = files.folder(directory)
        step = None if step is None else whole("step", step, 1, files.MOST_STEPS)
        mine, claimed = candidates(folder, ctx.rank, ctx.size, digest(ex.plan))
    except Exception as failed:  # the other ranks wait for this one
        wrong, step = failed, None
        refused = str(failed) or type(failed).__name__
    has = {"has": told_of(mine), "complete": claimed, "refused": refused, "folder": str(folder), "step": step}
    every = gather(ctx, has, limit)
    if wrong is not None and not isinstance(wrong, CheckpointError):
        raise wrong
    for rank, told in enumerate(every):
        if told["refused"]:
            raise CheckpointError(f"rank {rank} cannot restore: {told['refused']}", path=folder)
    for rank, told in enumerate(every):
        if told["step"] != every[0]["step"]:
            raise ConfigError(
                f"restore: step is {told['step']} on rank {rank} and {every[0]['step']} on rank 0: give the same"
            )
    left, mixed = common([told["has"] for told in every])
    mixed = {which: made for which, made in mixed.items() if step in (None, which[0])}
    claimed = max(told["complete"] for told in every)
    while True:
        which = max((one for one in left if step in (None, one[0])), default=None)
        if which is None:
            if mixed:
                newest = max(mixed)
                raise CheckpointError(f"{_torn(newest[0], mixed[newest])}; none before it is whole", path=folder)
            _check_nothing(ctx.rank, every[0]["folder"], step, claimed, [told["has"] for told in every])
            return None
        found, refused = [], ""
        try:
            found = [files.read(path) for path in mine[which].paths]
        except CheckpointError as failed:
            refused = str(failed)
        whys = gather(ctx, refused, limit)
        if not any(whys):
            break
        left.remove(which)
        claimed = max(claimed, which[0])  # every rank has the files that it needs of this checkpoint
        _warn(f"the checkpoint of step {which[0]} is left out: rank {r}: {why}" for r, why in enumerate(whys) if why)
    _warn(f"{_torn(newer[0], made)}: it is left out" for newer, made in sorted(mixed.items()) if newer > which)
    if step is None and which[0] < claimed:
        _warn([f"step {claimed} was complete once and is not any more: going on from step {which[0]}"])
    given = {label.rank: files.thawed(sections) for label, sections in found}
    extra = given.get(ctx.rank) or next(filter(None, given.values()), {})
    if check is not None:
        _check_on_all(ctx, check, extra, limit)
    ex.load_state_dict([{**sections["shard"], "clock": which[0]} for _, sections in found], limit)
    return Restored(which[0], extra)


def _check_on_all(ctx: Context, check: Callable[[dict[str, Any]], None], extra: dict[str, Any], limit: float) -> None:
    wrong: Exception | None = None
    try:
        check(extra)
    except Exception as refused:  # the other ranks wait for this one
        wrong = refused
    whys = gather(ctx, "" if wrong is None else str(wrong) or type(wrong).__name__, limit)
    if wrong is not None:
        raise wrong
    for rank, why in enumerate(whys):
        if why:
            raise InvalidArgument(f"rank {rank}: {why}")


def _check_nothing(rank: int, folder: str, step: int | None, claimed: int, has: Sequence[Sequence[Any]]) -> None:
    """Returns if this may be a job whose first checkpoint was never complete; otherwise raises CheckpointError."""
    if step is None and not any(has) and claimed == 0:
        return
    each = "; ".join(f"rank {r} has {', '.join(str(one[0]) for one in own) or 'none'}" for r, own in enumerate(has))
    what = f"no checkpoint {'' if step is None else f'of step {step} '}that every rank can load is in {folder}"
    if step is None and claimed == 0:
        if rank == 0:
            _warn([f"{what}, and none has been complete yet: starting anew ({each})"])
        return
    once = f", where step {claimed} was complete once" if claimed else ""
    raise CheckpointError(f"{what}{once}: {each}", path=folder)


# ---- the checkpoints of a directory ----------------------------------------------------------------------------------


def candidates(folder: Path, rank: int, size: int, plan: str) -> tuple[dict[Which, Resumable], int]:
    """Returns the checkpoints for which this rank has all files that it needs, judged by the files' names and lengths;
    and the newest step that any file calls complete."""
    groups, torn = _grouped(folder)
    _warn(torn)
    found = {}
    claimed = 0
    for which, have in groups.items():
        one = next(iter(have.values()))
        needed = [rank] if (one.plan, one.size) == (plan, size) else range(one.size)
        claimed = max(claimed, *(label.complete for label in have.values()))
        if all(r in have for r in needed):
            own = [have[r] for r in needed]
            found[which] = Resumable([folder / label.name for label in own], _made(own))
    return found, claimed


def told_of(found: Mapping[Which, Resumable]) -> list[Any]:
    """Returns candidates in the form that gather sends and common takes."""
    return [[*which, list(one.made.items())] for which, one in sorted(found.items())]


def common(has: Sequence[Iterable[Sequence[Any]]]) -> tuple[set[Which], dict[Which, dict[int, int]]]:
    """Returns two things: the checkpoints that every rank has, and those among them whose files were saved at different
    steps, with each rank's number of steps. has: for each rank, its result of told_of."""
    every = [{(int(step), str(run)): dict(made) for step, run, made in own} for own in has]
    both = set.intersection(*map(set, every))
    made = {which: {rank: n for own in every for rank, n in own[which].items()} for which in both}
    mixed = {which: own for which, own in made.items() if len(set(own.values())) > 1}
    return both - mixed.keys(), mixed


def _made(labels: Iterable[files.Label]) -> dict[int, int]:
    return {label.rank: label.made for label in labels if label.made != files.UNCOUNTED}


def _torn(step: int, made: Mapping[int, int]) -> str:
    """Returns a sentence that files with one number come from different steps."""
    each = ", ".join(f"rank {rank}'s after {n}" for rank, n in sorted(made.items()))
    return (
        f"the checkpoint of step {step} mixes different steps of the job: its files were saved after different numbers "
        f"of exchanged steps ({each}). Give Checkpointer.after the same number on every rank after the same step"
    )


def _grouped(folder: Path) -> tuple[dict[Which, dict[int, files.Label]], list[str]]:
    """Returns the labels of each checkpoint by rank, and sentences that tell why files are left out. Raises NewerFormat
    for a file of a newer hpcomm."""
    groups: dict[Which, dict[int, files.Label]] = {}
    torn = []
    for found in files.listed(folder):
        if not found.whole:
            continue  # a part file, which is being written or was left by a killed process
        try:
            label = files.label(found.path)
        except files.NewerFormat:
            raise
        except CheckpointError as wrong:
            torn.append(str(wrong))
            continue
        groups.setdefault((label.step, label.run), {})[label.rank] = label
    return groups, torn


def digest(plan: Plan) -> str:
    """Returns a digest of the owners of all elements. A rank needs only its own shard if the checkpoint's plan and the
    exchange's plan have the same digest."""
    hashed = hashlib.sha256(repr([(key.name, key.shape) for key in plan.keys]).encode())
    for column in ("owner", "key", "offset", "count", "action"):
        hashed.update(np.ascontiguousarray(plan.rows.column(column)).tobytes())
    return hashed.hexdigest()[:16]


def gather(ctx: Context, told: Any, timeout: float) -> list[Any]:
    """Returns every rank's value of told, sent as JSON. Collective."""
    data = json.dumps(told).encode()
    sizes = ctx.allgather(len(data).to_bytes(8, "little"), timeout)
    longest = max(int.from_bytes(size, "little") for size in sizes)
    return [json.loads(part) for part in ctx.allgather(data.ljust(longest), timeout)]


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        logger.warning("%s", sentence)
