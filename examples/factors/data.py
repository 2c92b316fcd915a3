"""Reads training samples: descriptions of Debian's packages, patches of photographs, a folder, or synthetic samples.

Only rank 0 reads; it puts everything into a window of each other rank.
"""

import io
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paper_data
from numpy.typing import NDArray
from paper_data import BadData
from scipy import sparse

import hpcomm

Arrays = dict[str, NDArray[Any]]
FIELD = re.compile(r"^(Package|Section|Maintainer|Description(?:-en)?): (.*)$", re.MULTILINE)
FEWEST = 1000  # with fewer packages the samples are synthetic
SIDE = 16  # pixels of a patch's side
GREY = np.array([0.299, 0.587, 0.114], np.float32)
MISSING = "no apt lists here: synthetic"


@dataclass(frozen=True)
class Labelled:
    """Samples x, a CSR matrix (N, features) of float32, and their class numbers y.

    The last `tests` samples are the data set's test samples.
    """

    name: str
    x: Any
    y: NDArray[np.int64]
    classes: int
    tests: int = 0


@dataclass(frozen=True)
class Pairs:
    """Pairs (first, second) of rows of x, a CSR matrix of float32, and whether the rows of each pair are similar."""

    name: str
    x: Any
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    similar: NDArray[np.bool_]


def of_folder(folder: str, features: int, samples: int | None, seed: int) -> Labelled:
    """Returns training rows of a folder (paper_data), in random order, at most `samples` of them."""
    read = paper_data.rows(folder, features)
    order = np.random.default_rng(seed).permutation(len(read.y))[:samples]
    return Labelled(read.name, read.x[order], read.y[order], read.classes)


# ---- Debian's packages -----------------------------------------------------------------------------------------------


def packages() -> list[dict[str, str]]:
    """Returns the packages that apt knows, one for each description; [] without apt, or with fewer than FEWEST."""
    if shutil.which("apt-cache") is None:
        return []
    said = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, errors="replace", check=False)
    found: dict[str, dict[str, str]] = {}
    for package in said.stdout.split("\n\n"):
        fields = dict(FIELD.findall(package))
        fields["Description"] = fields.get("Description", fields.get("Description-en", ""))
        if fields["Description"] and {"Section", "Maintainer", "Package"} <= fields.keys():
            found.setdefault(fields["Description"], fields)
    return list(found.values()) if len(found) >= FEWEST else []


def tfidf(chosen: list[dict[str, str]], features: int) -> Any:
    """Returns tf-idf features of packages: words and pairs of words of their names and descriptions."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - takes a second

    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=features, dtype=np.float32)
    return vectors.fit_transform([f"{each['Package'].replace('-', ' ')} {each['Description']}" for each in chosen])


def by_maintainer(features: int, samples: int | None, seed: int) -> Labelled:
    """Returns packages labelled by their maintainers, of whom each has at least two packages."""
    found = packages()
    if not found:
        return synthetic(samples or 20000, features, 1600, 10, seed, f"{MISSING} packages by maintainer")
    counts = Counter(each["Maintainer"] for each in found)
    chosen = [each for each in found if counts[each["Maintainer"]] >= 2]
    chosen = [chosen[i] for i in np.random.default_rng(seed).permutation(len(chosen))[:samples]]
    classes, y = np.unique([each["Maintainer"] for each in chosen], return_inverse=True)
    return Labelled("Debian packages by maintainer", tfidf(chosen, features), y.astype(np.int64), len(classes))


def labelled(folder: str | None, features: int, samples: int | None, seed: int) -> Labelled:
    """Returns the rows of a folder or, without a folder, packages labelled by maintainer."""
    if folder is None:
        return by_maintainer(features, samples, seed)
    return of_folder(folder, features, samples, seed)


def by_section(features: int, seed: int) -> Labelled:
    """Returns packages labelled by their section."""
    found = packages()
    if not found:
        return synthetic(20000, features, 50, 10, seed, f"{MISSING} packages by section")
    sections, y = np.unique([each["Section"].rpartition("/")[2] for each in found], return_inverse=True)
    return Labelled("Debian packages by section", tfidf(found, features), y.astype(np.int64), len(sections))


def paired(read: Labelled, pairs: int, seed: int) -> Pairs:
    """Returns random pairs of samples. In half of the pairs both samples have the same class."""
    rng, y = np.random.default_rng(seed), read.y
    order = np.argsort(y, kind="stable")  # puts the rows of a class next to each other
    begin = np.searchsorted(y[order], y)
    size = np.bincount(y)[y]
    first = rng.integers(len(y), size=pairs)
    second = rng.integers(len(y), size=pairs)
    wanted = np.arange(pairs) % 2 == 0
    own = first[wanted]
    second[wanted] = order[begin[own] + rng.integers(size[own])]
    return Pairs(read.name, read.x, first, second, y[first] == y[second])


# ---- patches ---------------------------------------------------------------------------------------------------------


def patches(count: int, seed: int) -> NDArray[np.float32]:
    """Returns patches, (count, 256), of scikit-learn's two photographs in grey: each minus its mean, of length 1."""
    from sklearn.datasets import load_sample_images  # noqa: PLC0415 - takes a second
    from sklearn.feature_extraction.image import extract_patches_2d  # noqa: PLC0415

    images = load_sample_images().images
    parts = np.array_split(np.arange(count), len(images))
    found = [
        extract_patches_2d(image.astype(np.float32) @ GREY, (SIDE, SIDE), max_patches=len(part), random_state=seed)
        for image, part in zip(images, parts, strict=True)
    ]
    x = np.concatenate(found).reshape(count, SIDE * SIDE)
    x = x[np.random.default_rng(seed).permutation(count)]
    x -= x.mean(axis=1, keepdims=True)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    return np.ascontiguousarray(x, np.float32)


# ---- numbers of a shape ----------------------------------------------------------------------------------------------


def synthetic(n: int, features: int, classes: int, stored: int, seed: int, name: str = "") -> Labelled:
    """Returns synthetic sparse samples whose classes a linear model can tell apart.

    Half of a sample's features are among a few that belong to its class, the other half are random. stored: most
    nonzero values of a sample.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    of_class = rng.integers(features, size=(classes, stored))
    columns = rng.integers(features, size=(n, stored))
    half = stored - stored // 2
    columns[:, :half] = np.take_along_axis(of_class[y], rng.integers(stored, size=(n, half)), axis=1)
    values = rng.random((n, stored), np.float32) + np.float32(0.5)
    x = sparse.csr_matrix((values.ravel(), (np.repeat(np.arange(n), stored), columns.ravel())), (n, features))
    lengths = np.sqrt(np.asarray(x.multiply(x).sum(axis=1))).astype(np.float32)
    x = sparse.csr_matrix(x.multiply(1 / lengths), dtype=np.float32)
    return Labelled(name or f"synthetic, {classes} classes, {features} features", x, y, classes)


# ---- from rank 0 to all others ---------------------------------------------------------------------------------------


def share(ctx: hpcomm.Context, reading: Callable[[], Any]) -> Any:
    """Calls reading on rank 0, and returns its result, a Labelled, Pairs or array, on every rank. All ranks call it.

    Raises:
        BadData: on every rank, if reading raises it.
    """
    packed = np.zeros(0, np.uint8)
    if ctx.rank == 0:
        file = io.BytesIO()
        arrays: Any
        try:
            arrays = _arrays(reading())
        except BadData as wrong:
            arrays = {"wrong": np.asarray(str(wrong))}
        np.savez(file, **arrays)
        packed = np.frombuffer(file.getbuffer(), np.uint8)
    nbytes = int.from_bytes(ctx.allgather(len(packed).to_bytes(8, "little"))[0], "little")
    window = ctx.window(nbytes)
    for peer in range(ctx.size if ctx.rank == 0 else 0):
        window.put(peer, packed)
        window.flush(peer)
    ctx.barrier()
    with np.load(io.BytesIO(window.array.tobytes())) as found:
        return _value(found)


def _arrays(value: Any) -> Arrays:
    if isinstance(value, np.ndarray):
        return {"array": value}
    fields = {name: np.asarray(one) for name, one in vars(value).items() if name != "x"}
    x = value.x.tocsr()
    return {**fields, "data": x.data, "indices": x.indices, "indptr": x.indptr, "columns": np.asarray(x.shape[1])}


def _value(found: Mapping[str, NDArray[Any]]) -> Any:
    if "wrong" in found:
        raise BadData(str(found["wrong"]))
    if "array" in found:
        return found["array"]
    indptr = found["indptr"]
    x = sparse.csr_matrix((found["data"], found["indices"], indptr), (len(indptr) - 1, int(found["columns"])))
    if "y" in found:
        return Labelled(str(found["name"]), x, found["y"], int(found["classes"]), int(found["tests"]))
    return Pairs(str(found["name"]), x, found["first"], found["second"], found["similar"])
