"""The interface of SFB (Xie et al., UAI 2016, figure 3): a trainer writes pairs of vectors, commits them, and reads the
matrix."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import codec, graphs
from .consistency import SSP
from .context import Context
from .errors import HpcommError, InvalidArgument
from .exchange import Exchange, Handle, Pairs
from .exchange.arguments import refuse
from .exchange.factors import scatter
from .graphs import Graph
from .graphs.paths import distances
from .optim import SGD, RuleOrRules, or_default
from .stage import whole
from .stats import ExchangeStats
from .topology import PeerToPeer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .exchange.options import More

_RULE = SGD()
_STOP = 0  # the signal word whose value is the number of the last commit


def sufficient_factors(
    ctx: Context,
    params: Mapping[str, Any],
    *,
    K: int,
    rule: RuleOrRules | None = None,
    staleness: int = 0,
    peers: int | None = None,
    relay: bool = False,
    **options: "Unpack[More]",
) -> "SufficientFactors":
    """Makes SufficientFactors (SFB: Xie et al., UAI 2016): matrices whose updates are sums of at most K products u v^T.
    Each rank sends its vectors to the other ranks, and applies all ranks' vectors to its own copy of the matrix
    (section 3). docs/factors.md has examples.

    Args:
        ctx: the context.
        params: a mapping from each key to the shape (J, D) of its matrix, which then begins as zeros; or to the first
            values of the matrix, a float32 array of this shape. The values of rank 0 are used on all ranks.
        K: the largest number of pairs of vectors that one commit may have for a key.
        rule: as Exchange takes it. None: SGD(), and rank 0 logs one warning about it.
        staleness: 0 means BSP; s above 0 means SSP(s), so a rank may be s commits ahead of the slowest (equation 4).
        peers: how many ranks each rank sends to, from 1 to P - 1, for P ranks; graphs.spread chooses these ranks
            (section 3, partial broadcast; equation 3). None: all other ranks.
        relay: with peers, whether ranks pass updates on to the ranks to which the sender does not send.
        options: further arguments of Exchange. The default of reduce is "sum": W -= lr * the sum of all ranks'
            products. To use the mean over a minibatch, K samples on each of P ranks, scale each u by 1 / (K P).

    Raises InvalidArgument if an argument is wrong on any rank, and ConfigError if ranks disagree.
    """
    try:
        if not isinstance(ctx, Context):
            raise InvalidArgument(f"ctx is {ctx!r}: must be a Context, see hpcomm.init")
        for name in ("codec", "plan", "topology", "consistency"):
            if name in options:
                raise InvalidArgument(f"{name} is given: sufficient_factors has one of its own; see Exchange")
        start = {name: _first(name, value) for name, value in _mapping(params).items()}
        s = whole("staleness", staleness, 0)
        graph = _graph(ctx.size, peers)
        shape = PeerToPeer(graph, relay=relay)
        pairs = codec.Factors(K)
    except HpcommError as wrong:
        if isinstance(ctx, Context):
            refuse(ctx, wrong)
        raise
    given: Any = {"reduce": "sum", **options, "codec": pairs}
    exchange = Exchange(ctx, start, shape, SSP(s), or_default(rule, _RULE, ctx.rank), **given)
    distance = 1 if graph is None or relay else int(distances(graph, 0).max())
    return SufficientFactors(exchange, K, distance * (s + 1) + 1)


class SufficientFactors:
    """Matrices that all ranks train by pairs of vectors; the function sufficient_factors makes this object. If the
    exchange has threads (EngineOptions.progress), they send and apply updates while the trainer computes, between
    commit and the next read of mat (figure 2 of the supplement).

    Attributes:
        exchange: the Exchange of the keys, for checkpoints and other features.
        commits: how many commits this rank has made.
        waited: seconds that this rank has waited in commit and for mat.
        mats: a mapping from each key to this rank's copy of its matrix; the rules for mat apply.
    """

    __slots__ = (
        "_context",
        "_handles",
        "_keys",
        "_last",
        "_lead",
        "_unsent",
        "_window",
        "commits",
        "exchange",
        "mats",
        "waited",
    )

    def __init__(self, exchange: Exchange, pairs: int, lead: int) -> None:
        """lead: the least number of commits, after rank 0's latest, at which all ranks can still end together."""
        self.exchange, self._context, self._lead = exchange, exchange.context, lead
        self._keys = {name: _Written(exchange, name, pairs) for name in exchange.params}
        self._handles: dict[str, Handle] = {}
        self._unsent: dict[str, Pairs] = {}  # by key: the pairs of a commit that was interrupted
        self._last: int | None = None  # the number of the last commit
        self._window = self._context.window(8, signals=1)
        self.commits, self.waited = 0, 0.0
        self.mats: Mapping[str, NDArray[np.float32]] = _Mats(self)

    def __repr__(self) -> str:
        keys = ", ".join(f"{name!r}: {self.exchange.params[name].shape}" for name in self._keys)
        return f"<hpcomm.factors.SufficientFactors rank {self._context.rank}, {{{keys}}}, {self.commits} commits>"

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write_u(self, i: int, vec: object, key: str | None = None) -> None:
        """Writes the vector u of pair i for the next commit. Raises InvalidArgument for an argument out of range.

        Args:
            i: the number of the pair, 0 to K - 1. When commit is called, all pairs from 0 to the last one must be
                written. A second write to the same pair replaces the first.
            vec: J float32 values, or a pair (indices, values) with the nonzero values.
            key: the key of the matrix; None if there is only one.
        """
        self._of(key).write("u", i, vec)

    def write_v(self, i: int, vec: object, key: str | None = None) -> None:
        """Writes the vector v of pair i, D values, for the next commit; see write_u."""
        self._of(key).write("v", i, vec)

    def write(self, u: Any, v: Any, key: str | None = None) -> None:
        """Writes the pairs 0 to n - 1 at once: u is an array (n, J) and v an array (n, D), or SciPy CSR matrices of
        these shapes. Raises InvalidArgument for more than K pairs, or for another shape."""
        self._of(key).write_all(u, v)

    def commit(self, timeout: float | None = None) -> None:
        """Sends, for every key, the pairs that were written since the last commit; a key may have none. First waits
        until the last commit is done.

        Raises:
            InvalidArgument: a pair has no u or no v, a value is not finite, or the job has ended. Nothing has been
                sent.
            Timeout: its waiting_for has the ranks for which commit waited. Nothing is lost: the next call continues
                this commit.
            PeerFailed: a rank has failed.
        """
        if not self.running:
            raise InvalidArgument(
                f"rank {self._context.rank}: commit: rank 0 has ended the job after {self._last} commits: leave the "
                "loop when running is False"
            )
        before = time.perf_counter()
        if not self._unsent:
            for written in self._keys.values():
                written.check()
            for name in list(self._handles):
                self._settle(name, timeout)
            for written in self._keys.values():
                written.pairs(timeout)
            self._unsent = {name: written.finish() for name, written in self._keys.items()}
        for name in list(self._unsent):
            self._handles[name] = self.exchange.push_pull_nb(name, self._unsent[name], timeout)
            del self._unsent[name]
        self.commits += 1
        self.waited += time.perf_counter() - before

    # ---- reading ---------------------------------------------------------------------------------------------------

    @property
    def mat(self) -> NDArray[np.float32]:
        """This rank's copy of the only matrix, float32 (J, D); do not write it.

        Reading the property waits until the consistency permits the next step. Do not use the array between a commit
        and the next read of mat. Raises InvalidArgument if there are several keys (use mats), Timeout and PeerFailed.
        """
        return self.mats[self._of(None).name]

    def _settle(self, name: str, timeout: float | None = None) -> None:
        handle = self._handles.get(name)
        if handle is not None:
            handle.wait(timeout)
            del self._handles[name]

    # ---- the end ---------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether this rank has more commits to make. It is True until rank 0 calls stop, and then until this rank has
        made the number of commits at which all ranks end. Never waits."""
        if self._last is None and self._context.rank != 0 and self._window.test_signal(_STOP, 1):
            self._last = self._window.wait_signal(_STOP, 1)
        return self._last is None or self.commits < self._last

    def stop(self) -> None:
        """Makes all ranks end after the same number of commits: with staleness s, s + 2 after rank 0's latest one, or
        later if `peers` is small.

        Only rank 0 may call it; its loop goes on until running is False. A second call has no effect. Raises
        InvalidArgument on another rank, and PeerFailed.
        """
        if self._context.rank != 0:
            raise InvalidArgument(f"stop: this is rank {self._context.rank}: rank 0 measures, and ends all")
        if self._last is not None:
            return
        last = self.commits + self._lead
        for peer in range(1, self._context.size):
            self._window.put_signal(peer, None, signal=_STOP, value=last)
        self._window.flush()
        self._last = last

    def set(self, **changes: Any) -> None:
        """Changes hyper-parameters of the rule from this rank's next commit on; see Exchange.set."""
        self.exchange.set(**changes)

    def stats(self) -> ExchangeStats:
        return self.exchange.stats()

    def close(self, timeout: float | None = None) -> None:
        """Waits for the pending commit, and closes the exchange (Exchange.close). The arrays of mat and mats stay
        valid."""
        self.exchange.close(timeout)
        self._handles.clear()

    def __enter__(self) -> "SufficientFactors":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if raised is None:
            self.close()
            return
        with suppress(HpcommError):  # the first exception is the one to report
            self.exchange.close(0)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _of(self, key: str | None) -> "_Written":
        if key is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if not isinstance(key, str) or key not in self._keys:
            told = "key is None" if key is None else f"{key!r} is no key"
            raise InvalidArgument(f"rank {self._context.rank}: {told}: the keys are {', '.join(map(repr, self._keys))}")
        return self._keys[key]


class _Mats(Mapping[str, NDArray[np.float32]]):
    """The value of SufficientFactors.mats. Reading a key waits for the key's pending commit."""

    __slots__ = ("_app",)

    def __init__(self, app: SufficientFactors) -> None:
        self._app = app

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        app = self._app
        if name in app._handles:
            before = time.perf_counter()
            app._settle(name)
            app.waited += time.perf_counter() - before
        return app.exchange.params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._app._keys)

    def __len__(self) -> int:
        return len(self._app._keys)


class _Written:
    """The pairs of one key that have been written for the next commit."""

    __slots__ = ("_exchange", "_most", "_pairs", "_rank", "_written", "name")

    def __init__(self, exchange: Exchange, name: str, most: int) -> None:
        self._exchange, self.name, self._most = exchange, name, most
        self._rank = exchange.context.rank
        self._pairs: Pairs | None = None  # the exchange's memory for the pairs; None: no pair has been written
        self._written = {"u": np.zeros(most, bool), "v": np.zeros(most, bool)}

    def pairs(self, timeout: float | None = None) -> Pairs:
        if self._pairs is None:
            self._pairs = self._exchange.factors(self.name, timeout)
        return self._pairs

    def write(self, what: str, i: int, vec: Any) -> None:
        if not isinstance(i, int | np.integer) or not 0 <= i < self._most:
            raise self._wrong(f"write_{what}: pair {i!r}: must be an int from 0 to {self._most - 1}, as K says")
        to = getattr(self.pairs(), what)[i]
        self._written[what][i] = False
        if isinstance(vec, tuple):
            scatter(f"write_{what}: pair {i}", vec, to, self._numbers, self._wrong)
        else:
            array = self._numbers(f"write_{what}: pair {i}", vec)
            if array.shape != to.shape:
                raise self._wrong(f"write_{what}: pair {i} has shape {array.shape}: must be {to.shape}")
            to[:] = array
        self._written[what][i] = True

    def write_all(self, u: Any, v: Any) -> None:
        pairs = self.pairs()
        u, v = (self._numbers(f"write: {what}", given) for what, given in (("u", u), ("v", v)))
        for what, given, to in (("u", u, pairs.u), ("v", v, pairs.v)):
            if len(given.shape) != 2 or given.shape[0] > len(to) or given.shape[1] != to.shape[1]:
                raise self._wrong(
                    f"write: {what} has shape {given.shape}: must be (n, {to.shape[1]}), with n from 0 to {len(to)}"
                )
        n = u.shape[0]
        if v.shape[0] != n:
            raise self._wrong(f"write: u has {n} vectors and v {v.shape[0]}: each pair has one of both")
        for what, given, to in (("u", u, pairs.u), ("v", v, pairs.v)):
            if hasattr(given, "toarray"):  # a SciPy matrix
                given.astype(np.float32, copy=False).toarray(out=to[:n])
            else:
                to[:n] = given
            self._written[what][:] = np.arange(self._most) < n

    def check(self) -> None:
        """Raises InvalidArgument if a pair lacks a vector, or has a value that is not finite."""
        if self._pairs is None:
            return
        n = self._count()
        for what, written in self._written.items():
            missing = np.flatnonzero(~written[:n])
            if missing.size:
                i = missing[0]
                raise self._wrong(f"commit: pair {i} of {n} has no {what}: call write_{what}({i}, ...)")
        for what in self._written:
            finite = np.isfinite(getattr(self._pairs, what)[:n])
            if not finite.all():
                i, at = np.argwhere(~finite)[0]
                value = getattr(self._pairs, what)[i, at]
                raise self._wrong(f"commit: {what} of pair {i} has {value:g} at element {at}: must be finite")

    def finish(self) -> Pairs:
        """Returns the pairs of this commit, with their count. The next write begins the next commit."""
        pairs = self.pairs()
        pairs.count = self._count()
        self._pairs = None
        for written in self._written.values():
            written[:] = False
        return pairs

    def _count(self) -> int:
        found = np.flatnonzero(self._written["u"] | self._written["v"])
        return int(found[-1]) + 1 if found.size else 0

    def _numbers(self, what: str, given: Any) -> Any:
        """Returns given as an array of numbers; a SciPy matrix is returned unchanged."""
        try:
            array = given if hasattr(given, "toarray") else np.asarray(given)
        except (TypeError, ValueError) as wrong:
            raise self._wrong(f"{what} is no array: {wrong}") from None
        if array.dtype.kind not in "fiu":
            raise self._wrong(f"{what} is {array.dtype}: must be numbers")
        return array

    def _wrong(self, told: str) -> InvalidArgument:
        return InvalidArgument(f"rank {self._rank}: key {self.name!r}: {told}")


# ---- arguments -------------------------------------------------------------------------------------------------------


def _mapping(params: object) -> Mapping[str, Any]:
    if not isinstance(params, Mapping):
        raise InvalidArgument(f"params is a {type(params).__name__}: must map names to shapes (J, D) or arrays")
    return params


def _first(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        if len(value) != 2:
            raise InvalidArgument(f"params[{name!r}] is {value!r}: must be a shape (J, D), or an array of that shape")
        shape = tuple(whole(f"params[{name!r}]", size, 1) for size in value)
        try:
            return np.zeros(shape, np.float32)
        except (MemoryError, ValueError):
            raise InvalidArgument(f"params[{name!r}] is {value!r}: there is no memory for such a matrix") from None
    return value


def _graph(size: int, peers: int | None) -> Graph | None:
    """Returns the graph of a partial broadcast; None: every rank sends to all others."""
    if peers is None:
        return None
    if isinstance(peers, bool) or not isinstance(peers, int) or not 1 <= peers < size:
        raise InvalidArgument(f"peers is {peers!r}: must be an int from 1 to {size - 1}, or None for all {size - 1}")
    return None if peers == size - 1 else graphs.spread(size, peers)
