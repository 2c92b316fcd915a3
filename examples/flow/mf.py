"""Matrix factorization (Parameter Flow, section 5.1: MF): the model of user i's rating of movie j is mean + <u_i, m_j>.

The loss of a rating is (error^2 + l2 (|u_i|^2 + |m_j|^2)) / 2.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from .data import Ratings
from .model import Defaults, Floats, Model, Out, Params, Rows, Touched

USERS, MOVIES = "users", "movies"
# Mean and standard deviation of the first values. Users' mean is not 0, so movies learn how popular they are.
FIRST = {USERS: (0.1, 0.1), MOVIES: (0.0, 0.01)}
BLOCK = 4096  # ratings that are computed at a time, which limits the memory


class Factorization(Model):
    """The model. Its keys are users, (users, latent), and movies, (movies, latent). A batch changes only the rows of
    its users and movies."""

    defaults: ClassVar[Defaults] = Defaults(steps=150, batch=2048, eta=48.0, low=2e-4, up=1.4e-3)

    def __init__(self, ratings: Ratings, latent: int, l2: float = 0.01, seed: int = 0) -> None:
        self.ratings, self.latent, self.l2, self.seed = ratings, latent, np.float32(l2), seed
        self.samples = len(ratings.value)
        self.name = f"matrix factorization, {ratings.name}"
        self._touched = Touched()

    def start(self) -> dict[str, Floats]:
        rng = np.random.default_rng(self.seed)
        sizes = {USERS: self.ratings.users, MOVIES: self.ratings.movies}
        found = {}
        for name, rows in sizes.items():
            mean, deviation = (np.float32(number) for number in FIRST[name])
            found[name] = rng.standard_normal((rows, self.latent), np.float32) * deviation + mean
        return found

    def update(self, params: Params, rows: Rows, scale: float, out: Out) -> None:
        (users, i), (movies, j) = (
            np.unique(which[rows], return_inverse=True) for which in (self.ratings.user, self.ratings.movie)
        )
        of_users, of_movies = params[USERS][users], params[MOVIES][movies]
        errors = np.einsum("ij,ij->i", of_users[i], of_movies[j]) - self.ratings.value[rows]
        errors *= np.float32(scale)
        weights: Any = sparse.csr_matrix((errors, (i, j)), (len(users), len(movies)))
        of_both = weights @ of_movies, weights.T @ of_users
        for key, at, own, which, gradient in zip(
            (USERS, MOVIES), (users, movies), (of_users, of_movies), (i, j), of_both, strict=True
        ):
            decay = np.float32(scale) * self.l2 * np.bincount(which).astype(np.float32)[:, None]
            self._touched.write(out(key), at, gradient + decay * own)

    def _errors(self, params: Params, user: Rows, movie: Rows, value: Floats) -> NDArray[np.float64]:
        found = [
            np.einsum("ij,ij->i", params[USERS][user[part]], params[MOVIES][movie[part]]) - value[part]
            for part in (slice(first, first + BLOCK) for first in range(0, len(value), BLOCK))
        ]
        return np.concatenate(found).astype(np.float64)

    def objective(self, params: Params) -> float:
        held = self.ratings.held
        user, movie = self.ratings.user[held], self.ratings.movie[held]
        errors = self._errors(params, user, movie, self.ratings.value[held])
        squares = [np.einsum("ij,ij->i", params[key], params[key]) for key in (USERS, MOVIES)]
        weighed = float((squares[0][user] + squares[1][movie]).mean())
        return (float((errors * errors).mean()) + float(self.l2) * weighed) / 2

    def score(self, params: Params) -> tuple[str, float]:
        errors = self._errors(params, self.ratings.test_user, self.ratings.test_movie, self.ratings.test_value)
        return "RMSE", float(np.sqrt((errors * errors).mean()))
