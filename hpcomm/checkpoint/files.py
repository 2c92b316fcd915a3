"""One rank's file of a checkpoint. A file is written completely or not at all, and a reader refuses a file with any
wrong bit.

    "hpcomm checkpoint 1\\n"    magic
    8 bytes, little-endian     length of the header
    header                     JSON: the label, all values that are not arrays, and the places of the arrays
    arrays                     as in memory, each from a multiple of 64 bytes on
    4 bytes, little-endian     CRC-32 of everything before

There is no pickle, so reading a file runs no code. Arrays go from memory to disk without a copy and without the GIL.
"""

import json
import mmap
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError, InvalidArgument
from . import values

MOST_STEPS = 10**15
UNCOUNTED = -1
GIVEN = "given"  # the name of the section with the trainer's values
_FORMAT = 1
_MAGIC = b"hpcomm checkpoint %d\n" % _FORMAT
_ANY_MAGIC = re.compile(rb"hpcomm checkpoint (\d+)\n")
_LINE = 64
_NAME = re.compile(r"step-(\d+)\.rank-(\d+)\.ckpt(\.part)?")
_PART = ".part"  # the end of a file's name until the file is written completely

Sections = Mapping[str, Mapping[str, Any]]
_T = TypeVar("_T")


class NewerFormat(CheckpointError):
    """Raised for a file that a newer hpcomm wrote. The file may be intact, so a job must not ignore it and start from
    step 0."""


@dataclass(frozen=True)
class Label:
    """The label of a file: which rank saved which step.

    Attributes:
        run: a word that the files of one Checkpointer share.
        plan: a digest of the owners of all rows.
        complete: when the file was written, the newest step whose files were complete on all ranks; 0 if there was no
            such step.
        made: how many steps the exchange had made on this rank. Files with one number may come from different steps of
            the job, which this count tells apart. It is UNCOUNTED if ranks are not at one step, or if this rank only
            serves.
    """

    step: int
    rank: int
    size: int
    run: str
    plan: str
    complete: int
    made: int = UNCOUNTED

    @property
    def name(self) -> str:
        return f"step-{self.step:06d}.rank-{self.rank:03d}.ckpt"


class Found(NamedTuple):
    """A file and the parts of its name. whole: False for a part file, which a process is writing, or had not finished
    when it was killed."""

    path: Path
    step: int
    rank: int
    whole: bool


def folder(directory: str | PathLike[str]) -> Path:
    """Returns the directory as a Path. Raises InvalidArgument if it is neither a str nor a PathLike."""
    try:
        return Path(directory)
    except TypeError:
        raise InvalidArgument(f"directory is {directory!r}: must be a path") from None


def listed(directory: Path) -> Iterator[Found]:
    """Yields the checkpoint files in a directory; nothing if the directory does not exist."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    except OSError as failed:
        raise CheckpointError(f"cannot read {directory}: {failed.strerror}", path=directory) from failed
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            yield Found(directory / name, int(match[1]), int(match[2]), match[3] is None)


def frozen(given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Copies a trainer's values into a section of a file. Refuses values that could not be read back unchanged.

    Raises:
        InvalidArgument: a value could not be read back unchanged; the error names the value.
    """
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{what} is a {type(given).__name__}: must map names to arrays, numbers and texts")
    arrays: list[NDArray[Any]] = []

    def put(value: Any) -> Any:
        array = values.plain_array(value)
        if array is None:
            return None
        arrays.append(array)
        return [len(arrays) - 1, isinstance(value, np.generic)]

    trees = {}
    for name, value in given.items():
        if type(name) is not str:
            raise InvalidArgument(f"{what}: {name!r} must be a str")
        trees[name] = values.packed(value, f"{what}[{name!r}]", put)
    return {"values": json.dumps(trees), **{str(i): array for i, array in enumerate(arrays)}}


def thawed(sections: Sections) -> dict[str, Any]:
    """Returns copies of the trainer's values in a file."""
    if GIVEN not in sections:  # an older file, of plain JSON and arrays
        return {name: np.array(v) if isinstance(v, np.ndarray) else v for name, v in sections["extra"].items()}
    section = sections[GIVEN]

    def get(found: Any) -> Any:
        return values.as_was(section[str(found[0])], scalar=found[1])

    return {name: values.unpacked(tree, get) for name, tree in json.loads(section.get("values", "{}")).items()}


# ---- write -----------------------------------------------------------------------------------------------------------


def write(directory: Path, label: Label, sections: Sections) -> int:
    """Writes a file, and returns its size in bytes. A reader sees the complete file or no file, even after a power
    failure: the file is synced before it gets its name, and the directory is synced afterwards.

    Raises:
        CheckpointError: the file cannot be written; the error has the path and the system's error. An existing file of
        that name is unchanged.
    """
    path = directory / label.name
    part = path.with_name(path.name + _PART)
    try:
        with open(part, "wb") as file:
            nbytes = _fill(file, label, sections)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync(directory)
    except OSError as failed:
        with suppress(OSError):
            part.unlink()
        raise CheckpointError(
            f"rank {label.rank}: cannot write {path}: {failed.strerror}: the checkpoint of step {label.step} is lost, "
            "those before it are kept",
            path=path,
        ) from failed
    return nbytes


def _fill(file: BinaryIO, label: Label, sections: Sections) -> int:
    plain: dict[str, dict[str, Any]] = {}
    places: list[list[Any]] = []
    arrays: list[NDArray[Any]] = []
    end = 0
    for section, entries in sections.items():
        plain[section] = {}
        for name, value in entries.items():
            if not isinstance(value, np.ndarray):
                plain[section][name] = value
                continue
            places.append([section, name, value.dtype.str, value.shape, end])
            arrays.append(value)
            end += _padded(value.nbytes)
    header = json.dumps({"label": asdict(label), "values": plain, "arrays": places, "nbytes": end}).encode()
    start = _MAGIC + len(header).to_bytes(8, "little") + header
    start = start.ljust(_padded(len(start)), b"\0")
    file.write(start)
    check = zlib.crc32(start)
    for array in arrays:
        bytes_ = array.reshape(-1).view(np.uint8).data
        for part in (bytes_, bytes(_padded(len(bytes_)) - len(bytes_))):
            file.write(part)
            check = zlib.crc32(part, check)
    file.write(check.to_bytes(4, "little"))
    return len(start) + end + 4


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _padded(n: int) -> int:
    return (n + _LINE - 1) // _LINE * _LINE


def remove(paths: Iterable[Path]) -> None:
    """Removes files. Ignores missing files. Raises CheckpointError for a file that cannot be removed."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as failed:
            raise CheckpointError(f"cannot remove {path}: {failed.strerror}", path=path) from failed


def prepare(directory: Path, rank: int) -> None:
    """Makes the directory, and removes part files that a killed process of this rank has left.

    Raises:
        CheckpointError: this rank cannot write into the directory.
    """
    trial = directory / f"rank-{rank:03d}{_PART}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        trial.write_bytes(b"")
        trial.unlink()
    except OSError as failed:
        raise CheckpointError(
            f"rank {rank}: cannot write into {directory}: {failed.strerror}: give a directory that this rank may write",
            path=directory,
        ) from failed
    remove(found.path for found in listed(directory) if found.rank == rank and not found.whole)


# ---- read ------------------------------------------------------------------------------------------------------------


class _Head(NamedTuple):
    label: Label
    values: dict[str, dict[str, Any]]
    arrays: list[tuple[str, str, str, list[int], int]]
    start: int  # offset of the arrays in the file


def label(path: Path) -> Label:
    """Returns the label of a file. Checks the header and the file's length, but not the checksum.

    Raises:
        NewerFormat: a newer hpcomm wrote the file.
        CheckpointError: the file is torn or cannot be read.
    """
    return _opened(path, lambda file: _head(path, file)).label


def read(path: Path) -> tuple[Label, dict[str, dict[str, Any]]]:
    """Returns the label and the sections of a file. Arrays are read-only views of the file, which stays mapped as long
    as they live.

    Raises:
        NewerFormat: a newer hpcomm wrote the file.
        CheckpointError: the file is torn or corrupt, or cannot be read.
    """

    def load(file: BinaryIO) -> tuple[Label, dict[str, dict[str, Any]]]:
        head = _head(path, file)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        whole = memoryview(mapped)
        if zlib.crc32(whole[:-4]) != int.from_bytes(whole[-4:], "little"):
            raise CheckpointError(f"{path} is damaged: its checksum does not match", path=path)
        for section, name, dtype, shape, offset in head.arrays:
            flat = np.frombuffer(mapped, dtype, int(np.prod(shape)), head.start + offset)
            head.values[section][name] = flat.reshape(shape)
        return head.label, head.values

    return _opened(path, load)


def _opened(path: Path, use: Callable[[BinaryIO], _T]) -> _T:
    try:
        with open(path, "rb") as file:
            return use(file)
    except CheckpointError:
        raise
    except OSError as failed:
        raise CheckpointError(f"cannot read {path}: {failed.strerror}", path=path) from failed


def _head(path: Path, file: BinaryIO) -> _Head:
    size = os.fstat(file.fileno()).st_size
    first = file.read(len(_MAGIC) + 8)
    n = int.from_bytes(first[len(_MAGIC) :], "little")
    begun = _ANY_MAGIC.match(first)
    if begun is not None and int(begun[1]) > _FORMAT:
        raise NewerFormat(
            f"{path} has format {int(begun[1])} of checkpoints, and this hpcomm reads format {_FORMAT}: restore it "
            "with the hpcomm that wrote it, or, if the file is damaged, move it away",
            path=path,
        )
    try:
        if not first.startswith(_MAGIC) or len(first) + n > size:
            raise ValueError
        header = json.loads(file.read(n))
        found = _Head(Label(**header["label"]), header["values"], header["arrays"], _padded(len(first) + n))
        if found.start + header["nbytes"] + 4 != size or path.name != found.label.name:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise CheckpointError(f"{path} is torn: it is not a whole checkpoint file, or was renamed", path=path) from None
    return found
