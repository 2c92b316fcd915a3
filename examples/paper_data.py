"""Reads the data sets of the papers from a folder that the user names. It downloads nothing.

SETS has, for each set, the files in its archive, the page that offers the archive, and the loader. An example can train
on any set of its kind; docs/datasets.md lists which.

Batches of CIFAR-10 are pickles. They are read by an Unpickler that allows only NumPy arrays and Python's numbers, str,
bytes, dict, list and tuple. It refuses any other class or function in a pickle before calling it.
"""

import lzma
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
PICTURES, RATINGS, ROWS = "pictures", "ratings", "rows"  # kinds of sets
HEADER = "userId,movieId,rating,timestamp"  # first line of MovieLens' CSV files
PIXELS = 3 * 32 * 32
MEAN, DEVIATION = 120.7, 64.15  # over all bytes of CIFAR-10's training pictures
OBJECTS = "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"


class BadData(ValueError):
    """The data cannot be read, or do not fit the training; the message says why."""


@dataclass(frozen=True)
class Split:
    """Samples to train on and samples to test with.

    Attributes:
        name: the set's name.
        x, test_x: CSR matrices (N, features) of float32; pictures, uint8 (N, 3, 32, 32), red, green, blue; or texts.
        y, test_y: int64 (N,), the class number of each sample. test_y is empty if the set has no test samples.
        kinds: the name of each class.
    """

    name: str
    x: Any
    y: Labels
    test_x: Any
    test_y: Labels
    kinds: tuple[str, ...]

    @property
    def classes(self) -> int:
        return len(self.kinds)


def standard(x: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns x as float32, scaled so that all of CIFAR-10's training pictures have mean 0 and standard deviation 1."""
    found = x.astype(np.float32)
    found -= np.float32(MEAN)
    found /= np.float32(DEVIATION)
    return found


@contextmanager
def scikit_learn() -> Iterator[None]:
    """Turns the ImportError of a missing package into BadData with the command that installs it."""
    try:
        yield
    except ImportError as missing:
        raise BadData(f"{missing}; these data need: pip install scikit-learn") from None


# ---- pictures --------------------------------------------------------------------------------------------------------

ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
}


class ArraysOnly(pickle.Unpickler):
    """An Unpickler that allows NumPy arrays and Python's built-in values, and refuses all other names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only NumPy arrays are admitted")
        return ADMITTED[module, name]


Batch = tuple[NDArray[np.uint8], NDArray[Any]]


def pickled(path: Path) -> Batch:
    """Reads pixels (N, 3072) and labels (N,) of a batch of CIFAR-10's Python version."""
    with path.open("rb") as file:
        try:
            read = ArraysOnly(file, encoding="bytes").load()
        except Exception as wrong:  # a damaged pickle may raise almost any error
            raise BadData(f"{path} is no pickled batch: {wrong}") from None
    if not isinstance(read, dict) or not {b"data", b"labels"} <= read.keys():
        raise BadData(f"{path} is no batch: a batch is a dict with data and labels")
    return read[b"data"], np.asarray(read[b"labels"])


def binary(path: Path) -> Batch:
    """Reads pixels (N, 3072) and labels (N,) of a batch of CIFAR-10's binary version."""
    flat = np.fromfile(path, np.uint8)
    if flat.size % (1 + PIXELS):
        raise BadData(f"{path} has {flat.size} bytes: must be a multiple of {1 + PIXELS}, a label and its pixels")
    rows = flat.reshape(-1, 1 + PIXELS)
    return rows[:, 1:], rows[:, 0]


def cifar10(read: Callable[[Path], Batch], paths: Sequence[Path]) -> Split:
    """Reads CIFAR-10. paths: the batches to train on, then the batch to test with."""
    images, labels = [], []
    for path in paths:
        x, y = read(path)
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != PIXELS or not len(x):
            shape = f"{getattr(x, 'dtype', type(x).__name__)} of shape {np.shape(x)}"
            raise BadData(f"{path} has pictures of {shape}: must be uint8 of shape (N, {PIXELS}), with N above 0")
        if y.shape != (len(x),) or y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(OBJECTS):
            raise BadData(f"{path} must have a label of 0 to {len(OBJECTS) - 1} for each of its {len(x)} pictures")
        images.append(x.reshape(-1, 3, 32, 32))
        labels.append(y.astype(np.int64))
    x, y = np.concatenate(images[:-1]), np.concatenate(labels[:-1])
    return Split("CIFAR-10", x, y, images[-1], labels[-1], OBJECTS)


# ---- ratings ---------------------------------------------------------------------------------------------------------


def movielens(paths: Sequence[Path]) -> NDArray[np.float64]:
    """Reads a ratings.csv or ratings.dat as float64 (N, 3): user, movie, rating."""
    (path,) = paths
    csv = path.suffix == ".csv"
    with path.open(encoding="utf-8", errors="replace") as file:
        if csv and (first := file.readline().strip()) != HEADER:
            raise BadData(f"{path} begins with {first[:80]!r}: must be {HEADER!r}")
        lines = file if csv else (line.replace("::", ",") for line in file)
        try:
            rows = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2)
        except ValueError as wrong:
            raise BadData(f"{path} is no table of ratings: {wrong}") from None
    if rows.shape[1] != 4 or not len(rows):
        raise BadData(f"{path} has shape {rows.shape}: must be (N, 4), a user, a movie, a rating and a time")
    good = (rows[:, :2] >= 1).all(axis=1) & (rows[:, 2] >= 0.5) & (rows[:, 2] <= 5)
    if not good.all():
        line = int(good.argmin())
        raise BadData(
            f"{path}, line {line + 1 + csv}: user, movie and rating are {', '.join(f'{x:g}' for x in rows[line, :3])}: "
            "users and movies must be 1 or more, ratings 0.5 to 5"
        )
    return np.array(rows[:, :3])


# ---- rows ------------------------------------------------------------------------------------------------------------


def svmlight(paths: Sequence[Path], name: str = "") -> Split:
    """Reads svmlight files, plain, .gz, .bz2 or .xz. Classes are sorted by their labels.

    paths: a file to train on, and perhaps one to test with. name: the set's name; "": the first path.
    """
    with scikit_learn():
        from sklearn.datasets import load_svmlight_files  # noqa: PLC0415 - takes a second

    with ExitStack() as stack:
        files = [stack.enter_context(lzma.open(path)) if path.suffix == ".xz" else str(path) for path in paths]
        try:
            x, labels, *tests = load_svmlight_files(files, dtype=np.float32)
        except (ValueError, OSError, EOFError, lzma.LZMAError, zlib.error) as wrong:
            raise BadData(f"{', '.join(map(str, paths))} is no svmlight file: {wrong}") from None
    test_x, test_labels = tests or (x[:0], labels[:0])
    kinds, y = np.unique(np.concatenate([labels, test_labels]), return_inverse=True)
    y, test_y = np.split(y.astype(np.int64), [len(labels)])
    if not len(labels):
        raise BadData(f"{paths[0]} is no svmlight file: it has no rows")
    return Split(name or str(paths[0]), x, y, test_x, test_y, tuple(f"{kind:g}" for kind in kinds))


def newsgroups(paths: Sequence[Path]) -> Split:
    """Reads 20 Newsgroups. paths: the folder to train on, and the folder to test with; each has a folder for each
    class, with a file for each text."""
    with scikit_learn():
        from sklearn.datasets import load_files  # noqa: PLC0415 - takes a second

    train, test = (load_files(path, encoding="latin-1", shuffle=False) for path in paths)
    for path, part in zip(paths, (train, test), strict=True):
        if not part.data or part.target_names != train.target_names:
            raise BadData(
                f"{path} has {len(part.data)} texts of {len(part.target_names)} groups: must have texts of the "
                f"{len(train.target_names)} groups of {paths[0]}"
            )
    y, test_y = (part.target.astype(np.int64) for part in (train, test))
    return Split("20 Newsgroups", train.data, y, test.data, test_y, tuple(train.target_names))


def by_words(features: int, first: Sequence[str], *more: Sequence[str]) -> list[Any]:
    """Turns each group of texts into a CSR matrix (N, features) of float32: hashed words and pairs of words, with the
    tf-idf weights of the first group."""
    with scikit_learn():
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer  # noqa: PLC0415
    from scipy import sparse  # noqa: PLC0415 - scikit-learn brings it

    hashed = HashingVectorizer(n_features=features, ngram_range=(1, 2), alternate_sign=False, dtype=np.float32)
    counts = [hashed.transform(texts) for texts in (first, *more)]
    weights = TfidfTransformer(sublinear_tf=True).fit(counts[0])
    found = [weights.transform(each) for each in counts]
    return [sparse.csr_matrix((x.data.astype(np.float32), x.indices, x.indptr), x.shape) for x in found]


# ---- the sets --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSet:
    """A data set, as its archive unpacks it.

    Attributes:
        name: the set's name.
        kind: PICTURES, RATINGS or ROWS.
        url: the page that offers the archive.
        files: a pattern for each file or folder that the loader needs. The first pattern identifies the set.
        load: the loader; it takes the paths in the order of files, then of more.
        more: patterns of files that may be missing.
        folder: a pattern of the folder that the archive makes; "" if it makes no folder.
    """

    name: str
    kind: str
    url: str
    files: tuple[str, ...]
    load: Callable[[Sequence[Path]], Any]
    more: tuple[str, ...] = ()
    folder: str = ""


CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
GROUPLENS = "https://grouplens.org/datasets/movielens/"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
BATCHES = *(f"data_batch_{i}" for i in range(1, 6)), "test_batch"
NEWS = "20news-bydate-train", "20news-bydate-test"


def _rows(name: str, page: str, train: str, test: str = "") -> DataSet:
    more = (test,) if test else ()
    return DataSet(name, ROWS, LIBSVM + page, (train,), partial(svmlight, name=name), more)


SETS = (
    DataSet("CIFAR-10 for Python", PICTURES, CIFAR, BATCHES, partial(cifar10, pickled), folder="cifar-10-batches-py"),
    DataSet(
        "CIFAR-10, binary version",
        PICTURES,
        CIFAR,
        tuple(f"{name}.bin" for name in BATCHES),
        partial(cifar10, binary),
        folder="cifar-10-batches-bin",
    ),
    DataSet("MovieLens latest, 20M or 25M", RATINGS, GROUPLENS, ("ratings.csv",), movielens, folder="ml-*"),
    DataSet("MovieLens 1M or 10M", RATINGS, GROUPLENS, ("ratings.dat",), movielens, folder="ml-*"),
    DataSet("20 Newsgroups", ROWS, "http://qwone.com/~jason/20Newsgroups/", NEWS, newsgroups),
    _rows("RCV1, two classes", "binary.html", "rcv1_train.binary*", "rcv1_test.binary*"),
    _rows("RCV1, all classes", "multiclass.html", "rcv1_train.multiclass*", "rcv1_test.multiclass*"),
    _rows("webspam", "binary.html", "webspam_wc_normalized_*"),
    _rows("svmlight", "", "*train*.svm*", "*test*.svm*"),
)


def find(folder: Path, kind: str) -> tuple[DataSet, list[Path]]:
    """Returns the set of this kind that the folder has, and the paths of its files.

    Raises:
        BadData: the folder has no set of this kind, several, or an incomplete one.
    """
    sets = [each for each in SETS if each.kind == kind]
    found = [
        (each, place)
        for each in sets
        for place in (folder, *(sorted(folder.glob(each.folder)) if each.folder else ()))
        if any(place.glob(each.files[0]))
    ]
    if not found:
        known = "; ".join(f"{each.files[0]} of {each.name}, from {each.url}" for each in sets)
        wrong = f"{folder} holds no data set" if folder.is_dir() else f"{folder} is no folder"
        raise BadData(f"{wrong}: it must hold one of {known}")
    if len(found) > 1:
        told = ", ".join(f"{each.name} in {place}" for each, place in found)
        raise BadData(f"{folder} holds several data sets: {told}; name the folder of one")
    ((chosen, place),) = found
    paths = []
    for pattern in (*chosen.files, *chosen.more):
        matching = sorted(place.glob(pattern))  # a plain file comes before the compressed one
        if matching:
            paths.append(matching[0])
        elif pattern in chosen.files:
            raise BadData(f"{place}: {pattern} is missing: {chosen.name} is from {chosen.url}")
    return chosen, paths


def load(folder: str | Path, kind: str) -> Any:
    """Reads the set of this kind in a folder: a Split of pictures or rows, or ratings, float64 (N, 3).

    Raises:
        BadData: as find, or if a file is damaged or has another format.
    """
    chosen, paths = find(Path(folder), kind)
    try:
        return chosen.load(paths)
    except (BadData, OSError) as wrong:
        raise BadData(f"{wrong}; {chosen.name} is from {chosen.url}") from None


def rows(path: str | Path, features: int) -> Split:
    """Reads rows from a folder, or from one file in svmlight's format. Texts are hashed, by words and pairs of words,
    into `features` columns; rows of svmlight files keep their columns.

    Raises:
        BadData: as load.
    """
    read: Split = svmlight([Path(path)]) if Path(path).is_file() else load(path, ROWS)
    if isinstance(read.x, list):
        x, test_x = by_words(features, read.x, read.test_x)
        return replace(read, x=x, test_x=test_x)
    return read


def option(kind: str) -> Callable[[Any], Any]:
    """Returns the click option --data, whose value is the argument `folder`."""
    names = ", ".join(each.name for each in SETS if each.kind == kind)
    return click.option("--data", "folder", type=click.Path(), help=f"A folder with the real data: {names}.")
