"""Reads texts: as sparse rows with labels of two classes, for train_text_svm.py; as bytes, for train_local_steps.py.

Only rank 0 reads. It puts each rank's training rows, and the test rows, into the rank's window.
"""

import json
import pydoc_data.topics
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paper_data
from numpy.typing import NDArray
from paper_data import BadData

import hpcomm

TRAINED = 0.8  # part of the rows to train on; the rest are test rows
HEADER = 1 << 16  # bytes of the first message of rank 0, which has sizes and names
FEWEST = 100  # a task needs at least so many rows of each class
FIELD = re.compile(r"^(Section|Description(?:-en)?): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Rows:
    """A sparse matrix of float32 by rows (CSR: indptr is int64, indices int32), and a label for each row.

    labels are float32, 1 or -1. features is the number of columns.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    labels: NDArray[np.float32]
    features: int

    @classmethod
    def of(cls, indptr: Any, indices: Any, values: Any, positive: Any, features: int) -> "Rows":
        """Makes Rows from arrays of any types. positive: whether each row is of the positive class."""
        labels = np.where(positive, 1, -1).astype(np.float32)
        return cls(indptr.astype(np.int64), indices.astype(np.int32), values.astype(np.float32), labels, features)

    @classmethod
    def of_csr(cls, matrix: Any, positive: Any) -> "Rows":
        """Makes Rows from a SciPy CSR matrix."""
        return cls.of(matrix.indptr, matrix.indices, matrix.data, positive, matrix.shape[1])

    @classmethod
    def of_dense(cls, matrix: NDArray[Any], positive: Any) -> "Rows":
        rows, columns = np.nonzero(matrix)
        indptr = np.searchsorted(rows, np.arange(len(matrix) + 1))
        return cls.of(indptr, columns, matrix[rows, columns], positive, matrix.shape[1])

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> "Rows":
        """Returns copies of the given rows, in the given order."""
        lengths = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        at = np.repeat(self.indptr[rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Rows(indptr, self.indices[at], self.values[at], self.labels[rows], self.features)

    @property
    def majority(self) -> float:
        """The accuracy of always answering the more frequent label."""
        share = float((self.labels > 0).mean())
        return max(share, 1 - share)

    @property
    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        return self.indptr, self.values, self.indices, self.labels

    def pack(self) -> NDArray[np.uint8]:
        return np.concatenate([array.view(np.uint8) for array in self.arrays])

    @property
    def sizes(self) -> list[int]:
        """The argument sizes of unpack: numbers of rows, stored values and features."""
        return [len(self), len(self.values), self.features]

    @classmethod
    def unpack(cls, packed: NDArray[np.uint8], sizes: Sequence[int]) -> "Rows":
        rows, stored, features = sizes
        ends = np.cumsum([8 * (rows + 1), 4 * stored, 4 * stored, 4 * rows])
        indptr, values, indices, labels = (part.copy() for part in np.split(packed[: ends[-1]], ends[:-1]))
        return cls(
            indptr.view(np.int64),
            indices.view(np.int32),
            values.view(np.float32),
            labels.view(np.float32),
            features,
        )


@dataclass(frozen=True)
class Task:
    """A task of two classes: a name, and rows to train on and to test with."""

    name: str
    train: Rows
    test: Rows


# ---- sources of texts ------------------------------------------------------------------------------------------------


def split(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Splits n rows at random into rows to train on and rows to test with. The same seed gives the same split."""
    order = np.random.default_rng(seed).permutation(n)
    cut = int(n * TRAINED)
    return order[:cut], order[cut:]


def descriptions() -> list[tuple[str, str]]:
    """Returns (description, section) of all packages that apt knows, each description once; [] without apt."""
    if shutil.which("apt-cache") is None:
        return []
    said = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, errors="replace", check=False)
    found: dict[str, str] = {}
    for package in said.stdout.split("\n\n"):
        fields = dict(FIELD.findall(package))
        text = fields.get("Description", fields.get("Description-en"))
        if text is not None and "Section" in fields:
            found.setdefault(text, fields["Section"].rpartition("/")[2])
    return list(found.items())


def packages(section: str, features: int, seed: int, hashed: bool = False) -> Task | None:
    """Returns the task of telling the packages of one section of Debian from all others; None without apt's lists.

    Columns are words and pairs of words of the packages' descriptions, with tf-idf weights from the training rows.

    Args:
        section: the section to find.
        features: number of columns, which are the most frequent words and pairs.
        seed: seed of the split.
        hashed: if true, all words and pairs are hashed into the columns instead, and some share a column.

    Raises:
        BadData: the section has too few packages.
    """
    from sklearn.feature_extraction.text import (  # noqa: PLC0415 - takes a second
        HashingVectorizer,
        TfidfTransformer,
        TfidfVectorizer,
    )
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415

    found = descriptions()
    if len(found) < 10 * FEWEST:
        return None
    sections = Counter(where for _, where in found)
    if sections[section] < FEWEST:
        most = ", ".join(name for name, _ in sections.most_common(12))
        raise BadData(f"section {section!r} has {sections[section]} packages here: take a larger one, such as {most}")
    texts = np.array([text for text, _ in found], object)
    positive = np.array([where == section for _, where in found])
    train, test = split(len(found), seed)
    words: dict[str, Any] = {"ngram_range": (1, 2), "dtype": np.float32}
    vectors = TfidfVectorizer(sublinear_tf=True, max_features=features, **words)
    if hashed:
        counts = HashingVectorizer(n_features=features, norm=None, alternate_sign=False, **words)
        vectors = make_pipeline(counts, TfidfTransformer(sublinear_tf=True))
    rows = Rows.of_csr(vectors.fit_transform(texts[train]), positive[train])
    tests = Rows.of_csr(vectors.transform(texts[test]), positive[test])
    return Task(f"Debian packages of section {section} against all others", rows, tests)


def svmlight(path: str, features: int, seed: int) -> Task:
    """Reads a task from a file in svmlight's format, or from a folder (paper_data). The greater of the two labels is
    the positive class. If the data have no test rows, some of the rows become test rows.

    Raises:
        BadData: the data cannot be read, or do not have two labels.
    """
    read = paper_data.rows(path, features)
    if read.classes != 2:
        told = ", ".join(read.kinds[:5]) + ", ..." * (read.classes > 5)
        raise BadData(f"{path} has {read.classes} labels ({told}): there must be two")
    rows = Rows.of_csr(read.x, read.y == 1)
    if len(read.test_y):
        return Task(read.name, rows, Rows.of_csr(read.test_x, read.test_y == 1))
    train, test = split(len(rows), seed)
    return Task(read.name, rows.take(train), rows.take(test))


def digits(seed: int) -> Task:
    """Returns the task of telling eights from other digits in scikit-learn's handwritten digits, which need no apt and
    no network."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

    images, shown = load_digits(return_X_y=True)
    rows = Rows.of_dense(images / 16, shown == 8)
    train, test = split(len(rows), seed)
    return Task("no apt lists here: handwritten eights against other digits", rows.take(train), rows.take(test))


def read(path: str | None, section: str, features: int, seed: int, hashed: bool = False) -> Task:
    """Returns the task that the options choose: data at path; otherwise packages, or digits without apt's lists.

    Raises:
        BadData: the data or the section give no task of two classes, or hashed is true and the task is not packages.
    """
    if hashed and path is not None:
        raise BadData(f"{path} has its own columns: --hashed is for the packages, leave out one of the two")
    task = svmlight(path, features, seed) if path is not None else packages(section, features, seed, hashed)
    if hashed and task is None:
        raise BadData("--hashed is for the packages, and apt's lists are missing: apt-get update")
    return task or digits(seed)


def prose() -> tuple[str, bytes]:
    """Returns a name and a text in UTF-8: the descriptions of all packages, one a line, shuffled the same way each
    time. Without apt's lists the text is Python's help pages."""
    found = [text for text, _ in descriptions()]
    if len(found) < 10 * FEWEST:
        return "no apt lists here: Python's help pages", "".join(pydoc_data.topics.topics.values()).encode()
    order = np.random.default_rng(0).permutation(len(found))
    return "descriptions of Debian packages", "\n".join(found[i] for i in order).encode()


# ---- from rank 0 to all others ---------------------------------------------------------------------------------------


def deal(labels: NDArray[np.float32], ranks: int, by_class: bool = False) -> list[NDArray[np.int64]]:
    """Returns the rows of each rank, equally many: dealt out in turn or, with by_class, sorted by label and cut."""
    each = len(labels) // ranks
    if by_class:
        order = np.argsort(labels, kind="stable")
        return [order[rank * each : (rank + 1) * each] for rank in range(ranks)]
    return [np.arange(rank, each * ranks, ranks) for rank in range(ranks)]


def share(ctx: hpcomm.Context, reading: Callable[[], Task], by_class: bool = False) -> Task:
    """Calls reading on rank 0, and returns the task with this rank's training rows (deal). All ranks call it.

    Raises:
        BadData: on every rank, if reading raises it, or if the task has fewer rows than ranks.
    """
    packed: list[NDArray[np.uint8]] = []
    told: dict[str, Any] = {}
    if ctx.rank == 0:
        try:
            task = reading()
            each = len(task.train) // ctx.size
            if each == 0:
                raise BadData(f"{task.name}: {len(task.train)} rows to train on, and {ctx.size} ranks: start fewer")
        except BadData as wrong:
            told = {"wrong": str(wrong)}
        else:
            parts = [task.train.take(rows) for rows in deal(task.train.labels, ctx.size, by_class)]
            packed = [np.concatenate([part.pack(), task.test.pack()]) for part in parts]
            told = {"name": task.name, "parts": [part.sizes for part in parts], "test": task.test.sizes}
            told["nbytes"] = max(len(each) for each in packed)
    told = json.loads(ctx.allgather(json.dumps(told).encode().ljust(HEADER))[0])
    if "wrong" in told:
        raise BadData(told["wrong"])
    window = ctx.window(told["nbytes"])
    for peer, rows in enumerate(packed):
        window.put(peer, rows)
    for peer, _ in enumerate(packed):
        window.flush(peer)
    ctx.barrier()
    train = Rows.unpack(window.array, told["parts"][ctx.rank])
    return Task(told["name"], train, Rows.unpack(window.array[len(train.pack()) :], told["test"]))


def share_bytes(ctx: hpcomm.Context, reading: Callable[[], tuple[str, bytes]]) -> tuple[str, NDArray[np.uint8]]:
    """Calls reading on rank 0, and returns its name and bytes on every rank. All ranks call it."""
    name, whole = reading() if ctx.rank == 0 else ("", b"")
    told = json.loads(ctx.allgather(json.dumps([name, len(whole)]).encode().ljust(HEADER))[0])
    window = ctx.window(told[1])
    peers = range(ctx.size if ctx.rank == 0 else 0)
    for peer in peers:
        window.put(peer, np.frombuffer(whole, np.uint8))
    for peer in peers:
        window.flush(peer)
    ctx.barrier()
    return told[0], window.array[: told[1]].copy()
