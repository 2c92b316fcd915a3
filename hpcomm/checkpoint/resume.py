"""The choice of the checkpoint to go on from, on which all ranks agree."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from .._core import seconds
from ..context import Context
from ..errors import CheckpointError, ConfigError
from ..exchange import Exchange
from ..log import logger
from ..plan import Plan
from ..stage import whole
from . import files

Which = tuple[int, str]  # a checkpoint: its step and its run


@dataclass(frozen=True)
class Restored:
    """A checkpoint that restore has found: the step after which the checkpoint was taken, and the extra values that the
    trainer of this rank had given; for a rank that was not there, those of rank 0's."""

    step: int
    extra: dict[str, Any]


def latest(directory: str | PathLike[str]) -> int | None:
    """The step of the newest complete checkpoint in a directory that all ranks write into; None: there is none.

    Every file of it has been read and its checksum found right. Newer ones that are torn or damaged are left out, with
    a warning; newer ones of which files are missing, as they are while ranks still write, without. Not
    collective: it asks nobody, and where each host has a directory of its own finds none; restore does.

    Raises:
        CheckpointError: the directory cannot be read.
    """
    folder = files.folder(directory)
    groups, torn = _grouped(folder)
    _warn(torn)
    for which, have in sorted(groups.items(), reverse=True):
        if set(have) != set(range(next(iter(have.values())).size)):
            continue
        try:
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

    Under the plan by which it was saved each rank reads its own file, so directories may be each host's own. Under
    another one (other ranks, servers or chunks) each reads all files and takes what it owns, from a directory that all
    can read.

    Args:
        directory: of the Checkpointer.
        step: of an older checkpoint; None means the newest.
        timeout: seconds to wait for the other ranks, which read their files meanwhile.

    Returns:
        The step and the trainer's extra values; None on every rank where no checkpoint has ever been complete, with a
        warning if there are parts of one.

    Raises:
        CheckpointError: no checkpoint of that step can be loaded by all, or one was complete once and none can be
            loaded any more; the same sentence on every rank, which says what each rank has. A directory cannot be read.
        InvalidArgument: an argument that cannot be. The other ranks raise CheckpointError with the sentence.
        InvalidArgument, ConfigError: as by Exchange.load_state_dict: it is of other keys or another rule.
    """
    ctx = ex.context
    limit, folder = ctx.config.timeout, Path()
    mine: dict[Which, list[Path]] = {}
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
    has = {"has": sorted(mine), "complete": claimed, "refused": refused, "folder": str(folder), "step": step}
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
    left = common([told["has"] for told in every])
    claimed = max(told["complete"] for told in every)
    while True:
        which = max((one for one in left if step in (None, one[0])), default=None)
        if which is None:
            _check_nothing(ctx.rank, every[0]["folder"], step, claimed, [told["has"] for told in every])
            return None
        found, refused = [], ""
        try:
            found = [files.read(path) for path in mine[which]]
        except CheckpointError as failed:
            refused = str(failed)
        whys = gather(ctx, refused, limit)
        if not any(whys):
            break
        left.remove(which)
        claimed = max(claimed, which[0])  # every rank has its files of it
        _warn(f"the checkpoint of step {which[0]} is left out: rank {r}: {why}" for r, why in enumerate(whys) if why)
    if step is None and which[0] < claimed:
        _warn([f"step {claimed} was complete once and is not any more: going on from step {which[0]}"])
    ex.load_state_dict([{**sections["shard"], "clock": which[0]} for _, sections in found], limit)
    own = next((sections for label, sections in found if label.rank == ctx.rank), found[0][1])
    extra = {name: np.array(v) if isinstance(v, np.ndarray) else v for name, v in own["extra"].items()}
    return Restored(which[0], extra)


def _check_nothing(rank: int, folder: str, step: int | None, claimed: int, has: Sequence[Sequence[Which]]) -> None:
    """Raises, unless this is a job whose first checkpoint never was complete."""
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


# ---- what there is ---------------------------------------------------------------------------------------------------


def candidates(folder: Path, rank: int, size: int, plan: str) -> tuple[dict[Which, list[Path]], int]:
    """The checkpoints of which this rank has all files that it needs, by their names and lengths alone, and the newest
    step that any file says was complete."""
    groups, torn = _grouped(folder)
    _warn(torn)
    found = {}
    claimed = 0
    for which, have in groups.items():
        one = next(iter(have.values()))
        needed = [rank] if (one.plan, one.size) == (plan, size) else range(one.size)
        claimed = max(claimed, *(label.complete for label in have.values()))
        if all(r in have for r in needed):
            found[which] = [folder / have[r].name for r in needed]
    return found, claimed


def common(has: Sequence[Iterable[Sequence[Any]]]) -> set[Which]:
    """The checkpoints that every rank has."""
    return set.intersection(*({(int(step), str(run)) for step, run in own} for own in has))


def _grouped(folder: Path) -> tuple[dict[Which, dict[int, files.Label]], list[str]]:
    """The labels of each checkpoint by rank, and why files are left out."""
    groups: dict[Which, dict[int, files.Label]] = {}
    torn = []
    for found in files.listed(folder):
        if not found.whole:
            continue  # being written, or left by a process that was killed: never had its name
        try:
            label = files.label(found.path)
        except CheckpointError as wrong:
            torn.append(str(wrong))
            continue
        groups.setdefault((label.step, label.run), {})[label.rank] = label
    return groups, torn


def digest(plan: Plan) -> str:
    """A digest of who owns which elements: under plans of the same digest a rank needs its own shard alone."""
    hashed = hashlib.sha256(repr([(key.name, key.shape) for key in plan.keys]).encode())
    for column in ("owner", "key", "offset", "count", "action"):
        hashed.update(np.ascontiguousarray(plan.rows.column(column)).tobytes())
    return hashed.hexdigest()[:16]


def gather(ctx: Context, told: Any, timeout: float) -> list[Any]:
    """The value that each rank gives, sent as JSON. Collective."""
    data = json.dumps(told).encode()
    sizes = ctx.allgather(len(data).to_bytes(8, "little"), timeout)
    longest = max(int.from_bytes(size, "little") for size in sizes)
    return [json.loads(part) for part in ctx.allgather(data.ljust(longest), timeout)]


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        logger.warning("%s", sentence)
