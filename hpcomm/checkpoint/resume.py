"""The choice of the checkpoint from which a job continues, on which all ranks agree."""

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
    """A checkpoint of which this rank has all files that it needs. paths: of these files. made: by rank, how many steps
    the exchange had made, if the file says so."""

    paths: list[Path]
    made: dict[int, int]


@dataclass(frozen=True)
class Restored:
    """The checkpoint that restore has loaded.

    Attributes:
        step: the step after which it was saved.
        extra: the extra values that this rank's trainer had given. If all files are read, a rank that was not in the
            job, or gave no values, gets the values of the lowest rank that gave some.
    """

    step: int
    extra: dict[str, Any]


def latest(directory: str | PathLike[str]) -> int | None:
    """Returns the step of the newest complete checkpoint in a directory into which all ranks write, or None.

    It reads all files of this checkpoint and checks their checksums. Newer checkpoints that are torn or damaged, or
    whose files were saved at different steps, are skipped with a warning; newer ones with missing files, which ranks
    may still write, without a warning. Not collective: it asks no other rank. If each host has its own directory, only
    restore finds a checkpoint.

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
    """Restores an exchange bit for bit from the newest checkpoint that every rank can load. Collective.

    Under the same plan as when it was saved, each rank reads only its own file, so each host may have its own
    directory. Under another plan (other ranks, servers or chunks) each rank reads all files, from a directory that all
    can read, and takes its own part. A checkpoint whose files were saved at different steps of the job is skipped, with
    a warning.

    Args:
        directory: of the Checkpointer.
        step: of an older checkpoint; None means the newest.
        timeout: seconds to wait for the other ranks, which read their files meanwhile.

    Returns:
        The step and the trainer's extra values; None on every rank if no checkpoint has ever been complete, with a
        warning if there are parts of one.

    Raises:
        CheckpointError: no checkpoint of that step can be loaded by all ranks; its files were saved at different steps
            of the job; or a checkpoint was complete once and none can be loaded any more. Every rank raises the same
            sentence, which says what each rank has. Or a directory cannot be read, or has a file in the format of a
            newer hpcomm.
        InvalidArgument: an invalid argument. The other ranks raise CheckpointError with the sentence.
        InvalidArgument, ConfigError: as by Exchange.load_state_dict: the checkpoint has other keys or another rule.
    """
    return restore_checked(ex, directory, step, timeout, None)


def restore_checked(
    ex: Exchange,
    directory: str | PathLike[str],
    step: int | None,
    timeout: float | None,
    check: Callable[[dict[str, Any]], None] | None,
) -> Restored | None:
    """Does restore. check: raises an exception to refuse extra values on this rank; then every rank raises it, and
    nothing has changed."""
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
        claimed = max(claimed, which[0])  # every rank has its files of this checkpoint
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
    """Raises unless this may be a job whose first checkpoint was never complete."""
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
    """Returns the checkpoints of which this rank has all files that it needs, judged by name and length; and the newest
    step that any file calls complete."""
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
    """Returns candidates in the form in which gather sends them and common takes them."""
    return [[*which, list(one.made.items())] for which, one in sorted(found.items())]


def common(has: Sequence[Iterable[Sequence[Any]]]) -> tuple[set[Which], dict[Which, dict[int, int]]]:
    """Returns the checkpoints that every rank has, and separately those among them whose files were saved at different
    steps (by rank: how many steps the exchange had made). has: by rank, the result of told_of."""
    every = [{(int(step), str(run)): dict(made) for step, run, made in own} for own in has]
    both = set.intersection(*map(set, every))
    made = {which: {rank: n for own in every for rank, n in own[which].items()} for which in both}
    mixed = {which: own for which, own in made.items() if len(set(own.values())) > 1}
    return both - mixed.keys(), mixed


def _made(labels: Iterable[files.Label]) -> dict[int, int]:
    return {label.rank: label.made for label in labels if label.made != files.UNCOUNTED}


def _torn(step: int, made: Mapping[int, int]) -> str:
    """Returns the sentence about files with one number that are of different steps."""
    each = ", ".join(f"rank {rank}'s after {n}" for rank, n in sorted(made.items()))
    return (
        f"the checkpoint of step {step} mixes different steps of the job: its files were saved after different numbers "
        f"of exchanged steps ({each}). Give Checkpointer.after the same number on every rank after the same step"
    )


def _grouped(folder: Path) -> tuple[dict[Which, dict[int, files.Label]], list[str]]:
    """Returns the labels of each checkpoint by rank, and why files are left out. Raises NewerFormat."""
    groups: dict[Which, dict[int, files.Label]] = {}
    torn = []
    for found in files.listed(folder):
        if not found.whole:
            continue  # a part file: being written, or left by a killed process
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
    """Returns a digest of the owners of all elements: under plans with the same digest a rank needs only its own
    shard."""
    hashed = hashlib.sha256(repr([(key.name, key.shape) for key in plan.keys]).encode())
    for column in ("owner", "key", "offset", "count", "action"):
        hashed.update(np.ascontiguousarray(plan.rows.column(column)).tobytes())
    return hashed.hexdigest()[:16]


def gather(ctx: Context, told: Any, timeout: float) -> list[Any]:
    """Returns the value that each rank gives, sent as JSON. Collective."""
    data = json.dumps(told).encode()
    sizes = ctx.allgather(len(data).to_bytes(8, "little"), timeout)
    longest = max(int.from_bytes(size, "little") for size in sizes)
    return [json.loads(part) for part in ctx.allgather(data.ljust(longest), timeout)]


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        logger.warning("%s", sentence)
