"""Updates that trainers give as pairs of vectors (codec.Factors), and the state of keys that take such updates."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..codec import Products, WireFormat
from ..errors import InvalidArgument
from ..stage import whole
from ..window import as_source
from .keys import KeyState

_HEAD = _core.FACTORS_HEAD  # bytes before the vectors


def scatter(
    what: str,
    vector: tuple[Any, ...],
    to: NDArray[np.float32],
    values_of: Callable[[str, Any], NDArray[Any]],
    wrong: Callable[[str], InvalidArgument],
) -> None:
    """Writes a sparse vector, given as (indices, values), into a dense one; other elements become 0.

    Args:
        what: the vector's name in errors.
        to: the dense vector, float32 (n,).
        values_of: a function that makes an array of the values, or refuses them. Its first argument is a name for
            errors.
        wrong: a function that makes an error from a sentence.
    """
    if len(vector) != 2:
        raise wrong(
            f"{what} is a tuple of {len(vector)}: a sparse vector is (indices, values), and several vectors are a list"
        )
    try:
        indices = np.asarray(vector[0])
    except (TypeError, ValueError) as bad:
        raise wrong(f"{what} has indices that are no array: {bad}") from None
    if indices.size == 0 and indices.ndim == 1:
        indices = indices.astype(np.intp)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise wrong(
            f"{what} has indices of shape {indices.shape} and dtype {indices.dtype}: must be whole numbers, one for "
            "each value; several vectors are a list"
        )
    values = values_of(f"the values of {what}", vector[1])
    if values.shape != indices.shape:
        raise wrong(f"{what} has {indices.size} indices and values of shape {values.shape}: must be as many")
    outside = (indices < 0) | (indices >= len(to))
    if outside.any():
        raise wrong(f"{what} has index {indices[outside][0]}: must be 0 to {len(to) - 1}")
    found, times = np.unique(indices, return_counts=True)
    if len(found) != len(indices):
        raise wrong(f"{what} has index {found[times > 1][0]} twice: give each once")
    to[:] = 0
    to[indices.astype(np.intp)] = values


class Pairs:
    """An update of a key of shape (J, D): the sum of the outer products u[i] v[i]^T of the first count pairs of vectors
    (SFB, section 2). The update has room for K pairs.

    Attributes:
        u: float32 (K, J), writable.
        v: float32 (K, D), writable.
        memory: uint8, the bytes of the whole update in the form that C reads.
    """

    __slots__ = ("_count", "_name", "memory", "u", "v")

    def __init__(self, memory: NDArray[np.uint8], name: str, pairs: int, rows: int, columns: int) -> None:
        values = memory[_HEAD:].view(np.float32)
        self._name, self.memory = name, memory
        self._count = memory[:4].view(np.intc)
        self.u = values[: pairs * rows].reshape(pairs, rows)
        self.v = values[pairs * rows :].reshape(pairs, columns)

    @property
    def count(self) -> int:
        """How many pairs the update has, 0 to K; 0 at first. Like the vectors, the count stays the same from push to
        push.

        Raises:
            InvalidArgument: the count is set to a number outside 0 to K.
        """
        return int(self._count[0])

    @count.setter
    def count(self, count: int) -> None:
        self._count[0] = whole(f"factors of {self._name!r}: count", count, 0, len(self.u))

    def __repr__(self) -> str:
        return f"<{self.count} pairs of {self._name!r}, u {self.u.shape}, v {self.v.shape}>"


class PairsKey(KeyState):
    """A key whose updates are given as pairs of vectors."""

    __slots__ = ("_filled", "codec", "rank")

    def __init__(
        self, name: str, index: int, shape: tuple[int, ...], rotates: bool, codec: WireFormat, rank: int
    ) -> None:
        super().__init__(name, index, shape, np.dtype(np.float32), rotates=rotates)
        self.codec, self.rank = codec, rank
        self._filled: Pairs | None = None  # the Pairs into which a trainer's vectors are copied

    def _new_pairs(self, most: int) -> Pairs:
        memory = np.zeros(_HEAD + 4 * most * sum(self.shape), np.uint8)
        return Pairs(memory, self.name, most, *self.shape)

    def _copy_pair(self, grad: tuple[Any, ...], to: Pairs) -> None:
        n_u, n_v = self._copied("u", grad[0], to.u), self._copied("v", grad[1], to.v)
        self._check_both(n_u, n_v)
        to.count = n_u

    def _check_both(self, n_u: int, n_v: int) -> None:
        if n_u != n_v:
            raise self._wrong(f"u has {n_u} vectors and v {n_v}: each pair has one of both")

    def _copied(self, what: str, given: Any, to: NDArray[np.float32]) -> int:
        """Copies one vector or several into the array to. Returns how many."""
        array = self._rows(what, given, to)
        if array is not None:
            to[: len(array)] = array
            return len(array)
        vectors: Sequence[Any] = given if isinstance(given, list) else [given]
        self._check_count(what, len(vectors), to)
        for k, vector in enumerate(vectors):
            self._copy(f"{what}[{k}]", vector, to[k])
        return len(vectors)

    def _rows(self, what: str, given: Any, to: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Returns the vectors of an array of shape (k, n) or (n,) as rows that fit into the array to. Returns None if
        the vectors are not given as an array."""
        if isinstance(given, list | tuple):
            return None
        array = self._array(what, given)
        if array.ndim == 1:
            array = array.reshape(1, -1)
        if array.ndim != 2 or array.shape[1] != to.shape[1]:
            told = np.shape(given)
            raise self._wrong(
                f"{what} has shape {told}: must be (k, {to.shape[1]}), or ({to.shape[1]},) for one vector"
            )
        self._check_count(what, len(array), to)
        return array

    def _copy(self, what: str, vector: Any, to: NDArray[np.float32]) -> None:
        """Copies one vector, given as an array or as (indices, values)."""
        if not isinstance(vector, tuple):
            array = self._array(what, vector)
            if array.shape != to.shape:
                raise self._wrong(f"{what} has shape {array.shape}: must be {to.shape}")
            to[:] = array
            return
        scatter(what, vector, to, self._array, self._wrong)

    def _array(self, what: str, given: Any) -> NDArray[np.float32]:
        try:
            array = given if isinstance(given, np.ndarray) else np.asarray(as_source(given))
        except InvalidArgument as wrong:
            raise self._wrong(f"{what}: {wrong}") from None
        if array.dtype != np.float32 or not array.dtype.isnative:
            raise self._wrong(f"{what} is {array.dtype}: must be float32")
        return array

    def _check_count(self, what: str, count: int, to: NDArray[np.float32]) -> None:
        if count > len(to):
            raise self._wrong(f"{what} has {count} vectors: {self.codec!r} takes {len(to)} at most")

    def _wrong(self, told: str) -> InvalidArgument:
        return InvalidArgument(f"rank {self.rank}: the gradient of {self.name!r}: {told}")


class FactorsKey(PairsKey):
    """A key that is sent as pairs of vectors."""

    __slots__ = ("_most",)

    def __init__(
        self, name: str, index: int, shape: tuple[int, ...], rotates: bool, codec: WireFormat, rank: int
    ) -> None:
        super().__init__(name, index, shape, rotates, codec, rank)
        self._most = (codec.settings(shape) or {})["pairs"]
        self.nbytes = _HEAD + 4 * self._most * sum(shape)

    def slot(self, exchange: Any, address: int) -> Pairs:
        memory = _core.exchange_gradient_array(exchange, self.index, address, (self.nbytes,), np.dtype(np.uint8))
        return Pairs(memory, self.name, self._most, *self.shape)

    def source(self, grad: Any) -> Any:
        if isinstance(grad, Pairs):
            if any(grad is slot for slot in self.slots.values()):
                return None
            grad = grad.u[: grad.count], grad.v[: grad.count]
        if not isinstance(grad, tuple) or len(grad) != 2:
            raise self._wrong(
                f"it goes as {self.codec!r} and takes a pair (u, v), not a {type(grad).__name__}: push(name, (u, v)), "
                f"or give it codec 'float32', which takes arrays of shape {self.shape}"
            )
        if self._filled is None:
            self._filled = self._new_pairs(self._most)
        self._copy_pair(grad, self._filled)
        return self._filled.memory

    def check_finite(self, gradient: Any, rank: int) -> None:
        pairs = gradient if isinstance(gradient, Pairs) else self._filled
        assert pairs is not None
        for what, vectors in (("u", pairs.u[: pairs.count]), ("v", pairs.v[: pairs.count])):
            finite = np.isfinite(vectors)
            if not finite.all():
                k, at = (int(i) for i in np.unravel_index(int(np.argmin(finite)), vectors.shape))
                raise InvalidArgument(
                    f"rank {rank}: the gradient of {self.name!r} has {what}[{k}] with {vectors[k, at]:g} at element "
                    f"{at}, not finite: check_finite refuses it, and nothing of the step was pushed"
                )


class ProductKey(PairsKey):
    """A key that is sent as float32. Its updates may be given as pairs of vectors, which this rank multiplies."""

    __slots__ = ("_place", "pairs")

    def __init__(
        self, name: str, index: int, shape: tuple[int, ...], rotates: bool, codec: Products, rank: int
    ) -> None:
        super().__init__(name, index, shape, rotates, codec, rank)
        self.pairs = self._new_pairs(codec.K)
        self._place: Any = None

    def into(self, place: Callable[[], NDArray[Any]]) -> None:
        """Sets the function that returns the array of the next push, which products are written to."""
        self._place = place

    def source(self, grad: Any) -> Any:
        if isinstance(grad, tuple) and len(grad) == 2:
            u, v = self._rows("u", grad[0], self.pairs.u), self._rows("v", grad[1], self.pairs.v)
            if u is not None and v is not None:
                self._check_both(len(u), len(v))
                return self._multiply(u, v)
            if self._filled is None:
                self._filled = self._new_pairs(len(self.pairs.u))
            self._copy_pair(grad, self._filled)
            grad = self._filled
        if not isinstance(grad, Pairs):
            return super().source(grad)
        return self._multiply(grad.u[: grad.count], grad.v[: grad.count])

    def _multiply(self, u: NDArray[np.float32], v: NDArray[np.float32]) -> None:
        """Writes the sum of the outer products into the array of the next push."""
        np.matmul(u.T, v, out=self._place())
