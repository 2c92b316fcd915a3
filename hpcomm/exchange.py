"""The exchange: a trainer pushes the gradients of its layers and pulls their parameters (PHub, section 3.1).

A key is a layer. What a trainer writes into gradient(key) and reads from params[key] lies in the exchange's own memory:
no copy on either side. Arrays of the trainer's own cost one.
"""

import difflib
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core, checkpoint, optim
from ._core import PULL, PUSH, PUSH_PULL, SLICE, address_of, error, seconds
from ._core import exchange_call as _call
from ._core import exchange_gradient as _gradient
from ._core import exchange_start as _start
from ._core import exchange_step as _step
from ._core import exchange_test as _test
from ._core import exchange_wait as _wait
from .arguments import (
    c_rule,
    check_choice,
    check_owners,
    check_plan,
    checked_params,
    engine_mode,
    owned_rows,
    refuse,
    wire_dtypes,
)
from .checkpoint import Kind, Piece
from .consistency import BSP, Consistency
from .context import Context
from .errors import ConfigError, HpcommError, InvalidArgument, Timeout
from .optim import SGD, AnyRule
from .plan import Plan
from .topology import ParameterServer
from .window import as_source

_TIMED_OUT = _core.TIMED_OUT
_WRONG = (TypeError, ValueError, OverflowError, BufferError)
_SMALL = 4096  # bytes of a source that a key may keep alive only to know it again
_SENTENCE_BYTES = 400  # of a refusal, told to the peers
_DEFAULT_TOPOLOGY = ParameterServer()
_DEFAULT_RULE = SGD()


@dataclass(frozen=True)
class ExchangeStats:
    """What an exchange has done so far on this rank.

    Attributes:
        pushes, pulls: of keys, by this rank.
        applied: rows of the plan folded and applied by this rank's cores.
        bytes_folded, bytes_written: read from updates, and written to workers, by this rank's cores.
        wait: seconds that this rank waited for pulls, free gradients and full rings.
        busy: seconds that this rank's cores folded, applied and wrote.
        threads: of its engine; 0 means that the callers' own waits do its work.
    """

    pushes: int
    pulls: int
    applied: int
    bytes_folded: int
    bytes_written: int
    wait: float
    busy: float
    threads: int


class _Key:
    """A key as the steps of a trainer need it."""

    __slots__ = ("checked", "dtype", "gradient", "index", "name", "nbytes", "params", "ready", "shape", "slots")

    def __init__(self, name: str, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name, self.index, self.shape, self.dtype = name, index, shape, dtype
        self.nbytes = 4 * math.prod(shape)  # of its parameters
        self.params: Any = None
        self.gradient: Any = None  # the array of the slot that the next push sends, as far as it is known
        self.ready = -1  # the step in which that slot was found free
        self.slots: dict[int, NDArray[Any]] = {}  # by address
        self.checked: Any = None  # the last small array that was pushed: a loop pushes the same one over and over


class Params(Mapping[str, NDArray[np.float32]]):
    """The parameters of an exchange by name, in the order of its keys. The arrays stay; their values change."""

    __slots__ = ("_arrays", "_keys", "_rank")

    def __init__(self, arrays: dict[str, NDArray[np.float32]], keys: Collection[str], rank: int) -> None:
        self._arrays, self._keys, self._rank = arrays, keys, rank

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        try:
            return self._arrays[name]
        except (KeyError, TypeError):
            if not self._arrays and name in self._keys:
                raise InvalidArgument(f"rank {self._rank} only serves: it has no parameters") from None
            raise _unknown(name, self._keys) from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, name: str, default: Any = None) -> Any:
        return self._arrays.get(name, default)

    def __repr__(self) -> str:
        return f"<parameters of {', '.join(f'{name} {value.shape}' for name, value in self._arrays.items())}>"


class Handle:
    """A push, a pull or both that has been started by push_nb, pull_nb or push_pull_nb.

    Attributes:
        name: of the key.
        done: whether test or wait has seen its end.
    """

    __slots__ = ("_exchange", "_index", "_params", "_ticket", "done", "name")

    def __init__(self, exchange: "Exchange", index: int, name: str, ticket: int, params: Any) -> None:
        self._exchange, self._index, self._ticket, self._params = exchange, index, ticket, params
        self.name = name
        self.done = False

    def test(self) -> bool:
        """Whether it has ended; never waits.

        Raises:
            PeerFailed: it cannot end any more.
        """
        if not self.done:
            status = _test(self._exchange._address, self._index, self._ticket)
            if status < 0:
                raise error(status)
            self.done = status == 0
        return self.done

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for its end; returns the key's parameters after a pull, None after a push.

        Raises:
            Timeout, PeerFailed: with the ranks still waited for.
        """
        if not self.done:
            self._exchange._wait(self._index, self._ticket, timeout)
            self.done = True
        return self._params

    def __repr__(self) -> str:
        return f"<hpcomm.Handle of {self.name!r}, {'done' if self.done else 'under way'}>"


class Exchange:
    """The updates of a job: workers push gradients, owners fold them and apply the rule, workers pull parameters.

    As in PHub (sections 3.1 to 3.2.4): keys are cut into chunks, each chunk is owned for life by one core of one
    server, and that core folds, applies and sends it back as soon as its updates are there, while other chunks are
    still on their way. What a worker reads and writes lies in the exchange's memory, which owners on the same host read
    and write in place.

    Collective: every rank makes it, with the same keys in the same order and the same settings (progress may differ).
    If a rank's arguments are refused, it raises on every rank.

    Args:
        ctx: the ranks.
        params: an ordered mapping of names to float32 arrays (C-contiguous, native). Their shapes are the keys; rank
            0's values are what every rank starts from. A rank that only serves gives the same. They are copied.
        topology: who serves: ParameterServer(placement, servers).
        consistency: BSP (a chunk is applied when every worker has pushed it) or ASYNC (each update as it comes).
        rule: SGD, Momentum, Nesterov, Adam, Average, or a Rule of one's own.
        chunk_bytes: bytes of float32 a chunk, a multiple of 64 (section 3.2.3).
        depth: gradients of one key that a worker may have under way, 1 or more.
        wire: the format of gradients: "float32", "float16" or "bfloat16". Sums are float32.
        reduce: "mean" or "sum" of the workers' updates.
        shared_params: the workers of a host read one copy of the parameters, which none may write. BSP, and transports
            that map the peers' memory only.
        deterministic: updates are folded in the order of the ranks when all are there, so that a run repeats bit for
            bit; False folds each as it comes (tall aggregation as in section 3.2.2), in whatever order.
        check_finite: a push of NaN or Inf is refused, with key and rank.
        progress: who works for the chunks that this rank owns: "thread" (a pinned thread for each core), "inline"
            (every wait of this rank's), or "auto" (threads where the host has cores to spare).
        cores: of each server. None means as many as its host can spare for threads, 1 at least, and 1 with "inline";
            ranks whose progress differs must give a number.
        plan: one made earlier, instead of topology, chunk_bytes, depth, wire, reduce and cores.
        timeout: seconds to wait for the other ranks; None means the context's default.

    Attributes:
        params: the parameters by name, float32 arrays of the keys' shapes in the exchange's memory, read-only with
            shared_params; empty on a rank that only serves. They outlive the exchange. Their values change between a
            push and the end of the pull that follows: look at them after that.
        plan: who owns which chunk.
        rule: the rule with its present hyper-parameters.

    From a push until the pull that follows has returned, the key's gradient and parameters belong to the exchange.
    The nonblocking forms end in _nb and return a Handle. An exchange belongs to one thread of a rank at a time; the GIL
    is released while a call waits, and Ctrl-C ends every wait. Every method but close raises InvalidArgument after
    close, and Timeout or PeerFailed with the ranks still waited for.

    Raises:
        InvalidArgument: an argument that cannot be, here or on another rank.
        ConfigError: ranks disagree; every rank is told.
        NotSupported: shared_params or progress that this host cannot give.
        OutOfMemory: a host has too little memory.
    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_closed",
        "_default",
        "_finite",
        "_handle",
        "_keys",
        "_kind",
        "_nbytes",
        "_order",
        "_rank",
        "_rotates",
        "_rows",
        "_rule",
        "_slice",
        "_steps",
        "_words",
        "context",
        "params",
        "plan",
    )

    _isa = "best"  # of its kernels; all give the same bits, which tests show

    def __init__(
        self,
        ctx: Context,
        params: Mapping[str, Any],
        topology: ParameterServer = _DEFAULT_TOPOLOGY,
        consistency: Consistency = BSP,
        rule: AnyRule = _DEFAULT_RULE,
        *,
        chunk_bytes: int = 32768,
        depth: int = 1,
        wire: str = "float32",
        reduce: str = "mean",
        shared_params: bool = False,
        deterministic: bool = True,
        check_finite: bool = False,
        progress: str = "auto",
        cores: int | None = None,
        plan: Plan | None = None,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(ctx, Context):
            raise InvalidArgument(f"ctx is {ctx!r}: must be a Context, see hpcomm.init")
        self.context = ctx  # keeps it open
        self._rank, self._default = ctx.rank, ctx.config.timeout
        self._slice = min(self._default, SLICE)
        try:
            limit = seconds(timeout, self._default)
            values = checked_params(params)
            optim.check_rule(rule)
            mode = engine_mode(consistency)
            check_choice("progress", progress, tuple(_core.PROGRESS))
            if plan is None:
                check_choice("topology", topology, ParameterServer)
                plan = topology.compile(
                    values,
                    ctx.size,
                    cores=_cores(ctx, topology, progress) if cores is None else cores,
                    chunk_bytes=chunk_bytes,
                    depth=depth,
                    wire=wire,
                    reduce=reduce,
                    each=mode == "ASYNC",
                )
            else:
                check_plan(plan, values, ctx.size)
            made = c_rule(rule, self._isa)
        except Exception as wrong:  # the other ranks wait for this one
            refuse(ctx, wrong)
            raise
        self.plan, self._rule = plan, rule
        self._rows = owned_rows(plan, ctx.rank)
        self._kind = Kind(optim.c_name(rule), made.slots, {name: value.size for name, value in values.items()})
        self._handle = _core.exchange_create(
            ctx._handle,
            limit,
            rule,  # its machine code must stay as long as the engine
            plan=plan.handle,
            rule=made,
            values=list(values.values()),
            consistency=_core.CONSISTENCIES[mode],
            progress=_core.PROGRESS[progress],
            shared_params=bool(shared_params),
            eager=not deterministic,
            check_finite=bool(check_finite),
            isa=_core.ISAS[self._isa],
        )
        self._closed = False
        self._finite = bool(check_finite)
        self._address = address_of(self._handle)
        self._rotates = int(plan.rows.column("depth").max()) > 1
        self._steps = 0
        dtypes = wire_dtypes(plan)
        self._keys = {name: _Key(name, i, value.shape, dtypes[i]) for i, (name, value) in enumerate(values.items())}
        self._nbytes = sum(key.nbytes for key in self._keys.values())
        self._order = array("i", range(len(self._keys)))
        self._words = array("Q", bytes(8 * (len(self._keys) + 2)))
        arrays = _core.exchange_params(self._handle, [key.shape for key in self._keys.values()], not shared_params)
        for key, params_array in zip(self._keys.values(), arrays, strict=False):
            key.params = params_array
        self.params = Params(dict(zip(self._keys, arrays, strict=False)), tuple(self._keys), ctx.rank)
        ctx._exchanges[self._address] = self

    def __repr__(self) -> str:
        return (
            f"<hpcomm.Exchange rank {self._rank}, {len(self._keys)} keys of {self._nbytes} bytes, {self._rule}, "
            f"{len(self._rows)} rows owned{', closed' if self._closed else ''}>"
        )

    # ---- gradients -------------------------------------------------------------------------------------------------

    def gradient(self, name: str, timeout: float | None = None) -> NDArray[Any]:
        """The array that the next push of a key sends: the key's shape, writable, in the wire's dtype (bfloat16 is
        ml_dtypes.bfloat16 where that package is installed, else the bits as uint16).

        It waits until the slot is free again, and is valid until the push: with depth > 1 the next one is another.
        What it holds at first is not defined.
        """
        key = self._key(name)
        if key.ready == self._steps:
            return key.gradient  # type: ignore[no-any-return]
        address = _gradient(self._address, key.index, self._slice if timeout is None else self._first(timeout))
        if address <= 0:
            address = self._again(address, lambda left: _gradient(self._address, key.index, left), timeout)
        gradient = key.slots.get(address)
        if gradient is None:
            gradient = key.slots[address] = _core.exchange_gradient_array(
                self._handle, self._rank, address, key.shape, key.dtype
            )
        key.gradient, key.ready = gradient, self._steps
        return gradient

    # ---- push and pull ---------------------------------------------------------------------------------------------

    def push(self, name: str, grad: object = None, timeout: float | None = None) -> None:
        """Sends the gradient of a key, and returns when it is on its way (PHub, section 3.1).

        Args:
            name: of the key.
            grad: None or the array that gradient(name) gave: it is in place, and nothing is copied. Any other float32
                array of the key's shape (C-contiguous; NumPy, the buffer protocol or DLPack) is copied once, and
                encoded if the wire is 16 bits wide; it is free to reuse on return.
            timeout: seconds to wait while the owner has no room for one more event.

        Raises:
            InvalidArgument: an unknown key, another dtype or shape, NaN or Inf with check_finite, a key whose last
                push is still under way, a rank that is no worker, a closed exchange; nothing has been sent then.
        """
        self._begin(name, PUSH, grad, timeout)

    def pull(self, name: str, timeout: float | None = None) -> NDArray[np.float32]:
        """The parameters of a key, which is params[name]: under BSP when the last push is applied, under ASYNC as they
        are now at their owners."""
        return self._blocking(name, PULL, None, timeout)  # type: ignore[no-any-return]

    def push_pull(self, name: str, grad: object = None, timeout: float | None = None) -> NDArray[np.float32]:
        """push, then pull, in one round (PHub, section 3.1). See push and pull."""
        return self._blocking(name, PUSH_PULL, grad, timeout)  # type: ignore[no-any-return]

    def push_nb(self, name: str, grad: object = None, timeout: float | None = None) -> Handle:
        """push, with a handle whose end means that the update has been applied and its slot is free again."""
        key, ticket = self._begin(name, PUSH, grad, timeout)
        return Handle(self, key.index, name, ticket, None)

    def pull_nb(self, name: str, timeout: float | None = None) -> Handle:
        """Starts a pull; wait of the handle returns the parameters."""
        key, ticket = self._begin(name, PULL, None, timeout)
        return Handle(self, key.index, name, ticket, key.params)

    def push_pull_nb(self, name: str, grad: object = None, timeout: float | None = None) -> Handle:
        """Starts a push_pull; wait of the handle returns the parameters."""
        key, ticket = self._begin(name, PUSH_PULL, grad, timeout)
        return Handle(self, key.index, name, ticket, key.params)

    def step(self, grads: Mapping[str, Any] | None = None, timeout: float | None = None) -> Params:
        """push_pull of every key: starts all of them, in the order given, then waits for all.

        Args:
            grads: a gradient for each key, as push takes them. None: all are in place.
            timeout: seconds for the whole step; None means the context's default.

        Returns:
            params, with the new values.

        Raises:
            InvalidArgument: as push does; nothing has been sent then.
        """
        words, order = self._words, self._order
        n = len(order)
        if grads is not None or self._finite:
            order, sources = self._step_sources(grads)
            words[n] = words[n + 1] = 0
            if any(source is not None for _, source in sources):
                for i, (key, source) in enumerate(sources):
                    words[i] = self._ticket(key, PUSH_PULL, source, timeout)
                words[n] = n
        else:
            words[n] = words[n + 1] = 0
        first = self._slice if timeout is None else self._first(timeout)
        status = _step(self._address, order, words, self._nbytes, first)
        self._steps += 1
        if self._rotates:
            for key in self._keys.values():
                key.gradient = None
        if status:
            self._again(status, lambda left: _step(self._address, order, words, self._nbytes, left), timeout)
        return self.params

    # ---- the rule --------------------------------------------------------------------------------------------------

    @property
    def rule(self) -> AnyRule:
        """The rule with its present hyper-parameters."""
        return self._rule

    def set(self, *, timeout: float | None = None, **changes: Any) -> None:
        """Changes hyper-parameters of the rule, e.g. set(lr=0.01), for every push that follows.

        Called by every worker, with the same values, while none of its pushes or pulls is under way; returns when all
        owners have them.

        Raises:
            InvalidArgument: the rule has none of that name, or the value is out of its range.
        """
        self._check_open("set")
        rule = optim.changed(self._rule, changes)
        _core.exchange_set_args(self._handle, optim.arguments(rule), seconds(timeout, self._default))
        self._rule = rule

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank's owners keep, as a dict of arrays, ints and texts that numpy.savez takes: the rule, its
        arguments, the keys, and of each row that this rank owns its place, step, parameters and state.

        Called while nothing is under way: by a worker after a step, by a rank that only serves after serve. The shards
        of all ranks are the whole checkpoint.

        Raises:
            NotSupported: a plan of one's own by which an element has no owner or several.
        """
        self._check_open("state_dict")
        check_owners(self.plan, "state_dict")
        pieces = []
        for row, span in self._rows:
            params = np.empty(span.count, np.float32)
            state = np.empty((self._kind.slots, span.count), np.float32)
            step = _core.exchange_get_row(self._handle, row, params, state)
            pieces.append(Piece(span, step, params, state))
        return checkpoint.packed(self._kind, optim.arguments(self._rule), pieces)

    def load_state_dict(
        self, shards: checkpoint.Shard | Iterable[checkpoint.Shard], timeout: float | None = None
    ) -> None:
        """Restores a checkpoint bit for bit: parameters, state, steps and the rule's hyper-parameters. Collective.

        Args:
            shards: what state_dict gave, or several of them, in any order and of any plan for the same keys: together
                they must hold every element that this rank owns.
            timeout: seconds to wait for the other ranks.

        Raises:
            InvalidArgument: a shard is of another rule or other keys, or elements are missing, here or on another rank;
                nothing has changed then, on any rank.
            ConfigError: the ranks' shards have different hyper-parameters.
        """
        self._check_open("load_state_dict")
        check_owners(self.plan, "load_state_dict")
        limit = seconds(timeout, self._default)
        wrong: Exception | None = None
        args: tuple[float, ...] = ()
        pieces: list[Piece] = []
        try:
            args, pieces = checkpoint.found(shards, self._kind, [span for _, span in self._rows])
            rule = optim.with_arguments(self._rule, args)
        except Exception as found:  # the other ranks wait for this one
            wrong = found
        self._agree(wrong, args, limit)
        for (row, _), piece in zip(self._rows, pieces, strict=True):
            _core.exchange_set_row(self._handle, row, piece.step, piece.params, piece.state)
        if self.params and args != optim.arguments(self._rule):
            _core.exchange_set_args(self._handle, args, limit)
        self._rule = rule
        _core.exchange_publish(self._handle, limit)

    def _agree(self, wrong: Exception | None, args: tuple[float, ...], timeout: float) -> None:
        """Raises on every rank if a rank has found something wrong, or if their arguments differ."""
        words = np.zeros(optim.MOST_ARGS, np.float64)
        words[: len(args)] = args
        told = "" if wrong is None else str(wrong) or type(wrong).__name__
        sentence = told.encode()[:_SENTENCE_BYTES].ljust(_SENTENCE_BYTES, b"\0")
        every = self.context.allgather(words.tobytes() + sentence, timeout)
        if wrong is not None:
            raise wrong
        for rank, part in enumerate(every):
            told = part[words.nbytes :].rstrip(b"\0").decode("utf-8", "replace")
            if told:
                raise InvalidArgument(f"rank {rank} refuses the checkpoint: {told}")
        for rank, part in enumerate(every):
            if part != every[0]:
                theirs = np.frombuffer(part[: words.nbytes])[: len(args)]
                raise ConfigError(
                    f"load_state_dict: rank 0's shards have rule arguments "
                    f"{tuple(np.frombuffer(every[0][: words.nbytes])[: len(args)].tolist())}, rank {rank}'s "
                    f"{tuple(theirs.tolist())}"
                )

    # ---- serving, and the end --------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Works for the rows that this rank owns, without waiting: for a trainer that computes long between two steps,
        where progress is inline."""
        self._check_open("progress")
        _core.exchange_progress(self._handle)

    def serve(self, timeout: float | None = None) -> None:
        """Serves until every worker has closed its exchange: what a rank does that is no worker. timeout: seconds; None
        means no deadline.

        Raises:
            InvalidArgument: this rank is a worker: its waits, and close, serve the others.
            PeerFailed: a worker died.
        """
        self._check_open("serve")
        _core.exchange_serve(self._handle, seconds(timeout, math.inf))

    def stats(self) -> ExchangeStats:
        """What it has done so far on this rank."""
        self._check_open("stats")
        return ExchangeStats(**_core.exchange_stats(self._handle))

    def close(self, timeout: float | None = None) -> None:
        """Tells every rank that no push comes from here any more; again is no error.

        What is under way is waited for, and a rank that owns rows of an ASYNC exchange serves the others until they
        have closed too. params stays valid.

        Raises:
            Timeout: not all of that in timeout seconds; close may be called again.
            PeerFailed: what is under way cannot end any more. The exchange is closed then.
        """
        if self._closed:
            return
        limit = seconds(timeout, self._default)
        self._steps += 1  # no gradient is at hand any more
        try:
            _core.exchange_close(self._handle, limit)
        except Timeout:
            raise
        except HpcommError:
            self._closed = True
            raise
        self._closed = True

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if raised is None:
            self.close()
            return
        with suppress(HpcommError):  # what was raised first is told
            self.close(0)

    # ---- steps of a call -------------------------------------------------------------------------------------------

    def _blocking(self, name: str, flags: int, grad: Any, timeout: float | None) -> Any:
        try:
            key = self._keys[name]
        except (KeyError, TypeError):
            raise _unknown(name, self._keys) from None
        if grad is not None:
            grad = None if grad is key.gradient else self._source(key, grad)
        first = self._slice if timeout is None else self._first(timeout)
        try:
            status = _call(self._address, key.index, flags, grad, key.nbytes, first)
        except _WRONG as wrong:
            raise _unreadable(key, wrong) from None
        if status >= 0 and flags & PUSH:
            key.ready = -1
            if self._rotates:
                key.gradient = None
        if status:
            self._finish(key, flags, grad, status, timeout)
        return key.params

    def _finish(self, key: _Key, flags: int, grad: Any, status: int, timeout: float | None) -> None:
        """Goes on after the first slice of a call: status is _call's."""
        if status > 0:
            ticket = status - 1
            self._again(_TIMED_OUT, lambda left: _wait(self._address, key.index, ticket, left), timeout)
        else:
            self._wait(key.index, self._started(key, flags, grad, status, timeout), timeout)

    def _begin(self, name: str, flags: int, grad: Any, timeout: float | None) -> tuple[_Key, int]:
        key = self._key(name)
        if grad is not None:
            grad = None if grad is key.gradient else self._source(key, grad)
        return key, self._ticket(key, flags, grad, timeout)

    def _ticket(self, key: _Key, flags: int, source: Any, timeout: float | None) -> int:
        first = self._slice if timeout is None else self._first(timeout)
        try:
            ticket = _start(self._address, key.index, flags, source, key.nbytes, first)
        except _WRONG as wrong:
            raise _unreadable(key, wrong) from None
        return self._started(key, flags, source, ticket, timeout)

    def _started(self, key: _Key, flags: int, source: Any, ticket: int, timeout: float | None) -> int:
        """The ticket, after a first slice of a start that gave a ticket or a status."""
        if ticket < 0:
            ticket = self._again(
                ticket, lambda left: _start(self._address, key.index, flags, source, key.nbytes, left), timeout
            )
        if flags & PUSH:
            key.ready = -1
            if self._rotates:
                key.gradient = None
        return ticket

    def _wait(self, index: int, ticket: int, timeout: float | None) -> None:
        status = _wait(self._address, index, ticket, self._slice if timeout is None else self._first(timeout))
        if status:
            self._again(status, lambda left: _wait(self._address, index, ticket, left), timeout)

    def _again(self, status: int, call: Callable[[float], int], timeout: float | None) -> int:
        """Goes on after a first slice that ended by status: call(seconds) until it gives 0 or more, which is
        returned."""
        limit = seconds(timeout, self._default)
        waited = min(limit, SLICE)
        if status != _TIMED_OUT or waited >= limit:
            raise error(status, limit)
        found = 0

        def again(left: float) -> int:
            nonlocal found
            found = call(left)
            return min(found, 0)

        _core.wait(again, limit, waited)
        return found

    def _first(self, timeout: float) -> float:
        """The first slice of a wait."""
        return min(seconds(timeout, timeout), SLICE)

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _check_open(self, op: str) -> None:
        if self._closed:
            raise InvalidArgument(f"rank {self._rank}: {op}: the exchange is closed")

    def _key(self, name: str) -> _Key:
        try:
            return self._keys[name]
        except (KeyError, TypeError):
            raise _unknown(name, self._keys) from None

    def _source(self, key: _Key, grad: Any) -> Any:
        """grad as the buffer that C copies from; None when it is the key's gradient, seen through another array."""
        if grad is key.checked:
            return grad
        try:
            source = np.asarray(as_source(grad))
        except InvalidArgument as wrong:
            raise InvalidArgument(f"gradient of {key.name!r}: {wrong}") from None
        if source.shape != key.shape:
            raise InvalidArgument(f"gradient of {key.name!r} has shape {source.shape}: must be {key.shape}")
        mine = key.gradient
        if mine is not None and source.dtype == mine.dtype and source.ctypes.data == mine.ctypes.data:
            return None
        if source.dtype != np.float32 or not source.dtype.isnative:
            own = "" if key.dtype == np.float32 else f", or the {key.dtype} array that gradient({key.name!r}) gave"
            raise InvalidArgument(f"gradient of {key.name!r} is {source.dtype}: must be float32{own}")
        if not source.flags.aligned:
            raise InvalidArgument(f"gradient of {key.name!r} does not lie at a multiple of 4 bytes: push a copy of it")
        if key.nbytes <= _SMALL and source is grad:
            key.checked = grad
        return source

    def _step_sources(self, grads: Mapping[str, Any] | None) -> tuple[Any, list[tuple[_Key, Any]]]:
        """The keys of a step in its order, as numbers and with their sources; None where a gradient is in place."""
        if grads is None:
            grads = dict.fromkeys(self._keys)
        elif not isinstance(grads, Mapping):
            raise InvalidArgument(f"grads is a {type(grads).__name__}: must map every key to its gradient, or be None")
        sources = []
        for name, grad in grads.items():
            key = self._key(name)
            in_place = grad is None or grad is key.gradient
            sources.append((key, None if in_place else self._source(key, grad)))
        if len(sources) != len(self._keys):
            missing = [name for name in self._keys if name not in grads]
            raise InvalidArgument(f"grads has no {missing[0]!r}: step takes one for each of {len(self._keys)} keys")
        if self._finite:
            for key, source in sources:
                self._check_finite(key, self.gradient(key.name) if source is None else source)
        return array("i", [key.index for key, _ in sources]), sources

    def _check_finite(self, key: _Key, gradient: NDArray[Any]) -> None:
        """Before the first key of a step goes out; C looks at each push."""
        bits = gradient.dtype == np.uint16  # bfloat16 without its dtype
        finite = (gradient & 0x7F80) != 0x7F80 if bits else np.isfinite(gradient)
        if not finite.all():
            at = int(np.argmin(finite))
            raise InvalidArgument(
                f"rank {self._rank}: the gradient of {key.name!r} is {gradient.flat[at]} at element {at}: "
                "check_finite refuses NaN and Inf, and nothing of the step was pushed"
            )


def _unknown(name: object, keys: Collection[str]) -> InvalidArgument:
    close = difflib.get_close_matches(name, keys, 3, 0.5) if isinstance(name, str) else []
    if close:
        return InvalidArgument(f"{name!r} is no key of this exchange: did you mean {', '.join(map(repr, close))}?")
    known = ", ".join(map(repr, list(keys)[:8]))
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    return InvalidArgument(f"{name!r} is no key of this exchange: they are {known}{more}")


def _unreadable(key: _Key, wrong: Exception) -> InvalidArgument:
    return InvalidArgument(f"gradient of {key.name!r} cannot be read: {wrong}")


def _cores(ctx: Context, topology: ParameterServer, progress: str) -> int:
    if progress == "inline":
        return 1
    return max(1, _core.spare_cores(ctx._handle, topology.roles(ctx.size)[1]))
