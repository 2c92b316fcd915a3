"""The exchange: a trainer pushes the gradients of its layers and pulls their parameters (PHub, section 3.1).

A key is a layer. The arrays gradient(key) and params[key] lie in the exchange's memory: a trainer that uses them copies
nothing. Pushing another array costs one copy.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from .. import _core, launch, optim
from .._core import PULL, PUSH, PUSH_PULL, seconds
from .._core import exchange_call as _call
from .._core import exchange_start as _start
from ..codec import Products, WireFormat
from ..codec.base import number
from ..consistency import BSP
from ..context import Context
from ..errors import HpcommError, InvalidArgument, Timeout
from ..model import saved_seconds
from ..optim import SGD, RuleOrRules
from ..plan import Plan
from ..stats import CALLS, CodecStats, ExchangeStats, LoadStats, PeerStats, Traffic
from ..topology import ParameterServer
from ..topology.given import Given
from .agreed import Arguments, agreed
from .arguments import Checked, Compiled
from .calls import Calls, Handle
from .factors import FactorsKey, Pairs, ProductKey
from .keys import KeyState, Params
from .options import Consistencies, EngineOptions, Keywords, PlanOptions, check_keywords
from .processor import Processor
from .shards import Shard
from .split import TwoCalls
from .state import State

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DEFAULT_TOPOLOGY = ParameterServer()
_DEFAULT_RULE = SGD()
_DEFAULT_ENGINE = EngineOptions()


class Exchange(Calls):
    """The updates of a job: workers push gradients, owners fold them and apply the rule, workers pull parameters.

    As in PHub (sections 3.1 to 3.2.4): keys are cut into chunks, and one core of one server owns each chunk for life.
    That core folds, applies and sends back the chunks of a key as soon as their updates have come, while other keys are
    still travelling. Owners on the same host read and write a worker's gradients and parameters in place.

    Collective: every rank makes it, with the same keys in the same order and the same settings (progress may differ).
    If a rank's arguments are refused, it raises on every rank.

    Args:
        ctx: the ranks.
        params: an ordered mapping of names to float32 arrays (C-contiguous, native), which are copied. Their shapes are
            the keys, and every rank starts from rank 0's values. A rank that only serves gives the same.
        topology: who serves, and how several NICs are used: ParameterServer(placement, servers, affinity, interfaces);
            "flat" is its default. A Hierarchy folds updates inside each host first; "auto" is a Hierarchy where ranks
            share hosts and BSP has no further options, otherwise "flat". With a PeerToPeer every rank applies the
            updates of all ranks to its own parameters (SFB, section 3), under BSP, SSP(s) or ASYNC. On a Graph of
            hpcomm.graphs every rank keeps its own parameters, and folds its update with its in-neighbours' updates by
            the graph's weights (ASAP, sections 3 and 4); steps take several graphs in turn, and a function such as
            hpcomm.graphs.root_expander may return them for a number of ranks. A user's own Topology works too, and a
            mapping from names of keys to these; keys that it does not name are flat.
        consistency: BSP (a chunk is applied when every worker has pushed it), ASYNC (each update as it comes) or SSP(s)
            (each as it comes, and no worker is more than s steps ahead). On a graph also NOTIFY_ACK and BARRIER.
            Consistency(quorum=q, late="drop") is BSP that goes on without stragglers: the updates of q workers, with a
            Hierarchy of q hosts, are enough, see late. On a graph it is NOTIFY_ACK without stragglers, and a fold
            needs the updates of q in-neighbours. Or a mapping from names of keys to these; keys that it does not name
            are BSP. Keys of one consistency, with servers, on one graph or with the same peers, are a scheme. Schemes
            stand side by side, and each works as in a separate exchange. All keys have the same workers.
        rule: SGD, Momentum, Nesterov, Adam, AdamW, ProxSGD, Dual, Average, or a user's Rule; or a mapping that
            gives every key its own. ProxSGD and Dual with a prox are for keys that are matrices. None: SGD(lr=0.01),
            and a warning says so once.
        plan: PlanOptions, by which the plan of the topology is made; or a Plan that was made earlier: topology, which
            must be with servers, and the fields of PlanOptions are then ignored.
        engine: EngineOptions: how the exchange works.
        options: codec, chunk_bytes, depth and reduce of PlanOptions, and split and progress of EngineOptions, may stand
            alone: codec="float16" is plan=PlanOptions(codec="float16"). Given beside plan or engine they win.
        timeout: seconds to wait for the other ranks; None means the context's default.

    Attributes:
        params: the parameters by name, float32 arrays of the keys' shapes in the exchange's memory, read-only with
            shared_params; empty on a rank that only serves. They outlive the exchange. Their values change between a
            push and the end of the pull that follows: read them after that. With in_place the trainer writes them, and
            after each push they are other arrays: take the array that pull or push_pull returns, or look it up again.
            Without in_place do not write them: the part that this rank owns would change for all ranks, and the next
            pull would undo the rest. To change parameters use load_state_dict or the rule Average.
        plan: who owns which chunk.
        graph: the graphs that the steps take in turn, of the first keys that are on graphs; () with servers.
        codecs: by name of the key, the codec of its updates, given or chosen by "auto": a value of hpcomm.codec.
        rule: the rule with its present hyper-parameters; where keys differ, a dict by key.

    Under SSP(s) with servers a pull may end before its push is applied: call gradient(name) before each gradient is
    written, and it waits until the slot is free. A second pull without a push between always asks the owners, who have
    applied all pushes before it; so all updates are in params when all workers have made such a second pull of every
    key, met (Context.barrier) and pulled every key again.

    Under SSP(s) and ASYNC with a Hierarchy (or a plan of several stages) parameters come with the answer to a push, for
    all keys of that consistency, flat ones too: a pull without a push brings nothing new, and a key has one pending
    push. All updates are in params when all workers have pulled every push, met and called
    load_state_dict(state_dict()).

    With a quorum a worker pushes every key once a step, and pulls all keys before the next step; each of several groups
    of keys has separate steps. The parameters of a straggler stay as they are until it pushes; that push ends at once,
    with the newest parameters, and `late` says so. With a Hierarchy a host comes late as a whole, and all its ranks are
    told.

    Where keys form several schemes: reduce counts with servers and peers; shared_params needs BSP for all keys,
    and in_place graphs; checkpoints hold all keys, and recover needs BSP with servers or peers.

    From a push until the pull that follows has returned, the key's gradient and parameters belong to the exchange.
    The nonblocking forms end in _nb and return a Handle. An exchange belongs to one thread of a rank at a time; the GIL
    is released while a call waits, and Ctrl-C ends every wait. Every method but close raises InvalidArgument after
    close, and Timeout or PeerFailed with the ranks still waited for.

    Raises:
        InvalidArgument: an argument is wrong, here or on another rank.
        ConfigError: ranks disagree; every rank is told.
        NotSupported: this host cannot do shared_params or progress as given.
        OutOfMemory: a host has too little memory.
    """

    __slots__ = (
        "__weakref__",
        "_decided",
        "_nbytes",
        "_processor",
        "_schemes",
        "_state",
        "codecs",
        "context",
        "graph",
        "params",
        "plan",
    )

    _isa = "best"  # of its kernels; all give the same bits, which tests show

    def __init__(
        self,
        ctx: Context,
        params: Mapping[str, Any],
        topology: Given = _DEFAULT_TOPOLOGY,
        consistency: Consistencies = BSP,
        rule: RuleOrRules | None = None,
        *,
        plan: Plan | PlanOptions | None = None,
        engine: EngineOptions = _DEFAULT_ENGINE,
        timeout: float | None = None,
        **options: "Unpack[Keywords]",
    ) -> None:
        check_keywords(options)
        if not isinstance(ctx, Context):
            raise InvalidArgument(f"ctx is {ctx!r}: must be a Context, see hpcomm.init")
        self.context = ctx  # keeps it open
        self._processor = Processor()
        self._rank, self._default = ctx.rank, ctx.config.timeout
        chosen = optim.or_default(rule, _DEFAULT_RULE, ctx.rank)
        asked = Arguments(params, topology, consistency, chosen, plan, engine, options)
        made, given, self._decided = agreed(ctx, asked, timeout, self._isa, Exchange)
        names = tuple(params)
        self.codecs: Mapping[str, WireFormat] = {name: given.codecs.values[name] for name in names}
        self.plan, self._schemes = given.plan, given.schemes
        self.graph = next((one.phases for one in given.schemes if one.phases), ())
        self._handle = self._created(given, made.engine, seconds(timeout, self._default))
        self._state = State(ctx, self._handle, made, given)
        self._open(given, names)
        ctx._exchanges[self._address] = self

    def _created(self, given: Checked, engine: EngineOptions, timeout: float) -> Any:
        """The exchange in C, with a configuration for each scheme."""
        # their machine code must stay as long as the engine
        keep = (tuple(given.rules.values()), given.codecs.keep, given.codecs.configs)
        configs, end = [], 0
        for one in given.schemes:
            start, end = end, end + len(one.scheme.names)
            configs.append(self._configuration(given, one, slice(start, end), engine))
        return _core.exchange_create(self.context._handle, timeout, keep, configs)

    def _configuration(self, given: Checked, one: Compiled, keys: slice, engine: EngineOptions) -> tuple[Any, object]:
        consistency = one.scheme.consistency
        return _core.exchange_config(
            plan=one.plan.handle,
            rules=given.c_rules[keys],
            values=list(given.values.values())[keys],
            consistency=_core.CONSISTENCIES[one.mode],
            staleness=consistency.staleness or 0,
            quorum=0 if one.mode == "ASYNC" else consistency.quorum or 0,
            grace=-1 if consistency.grace is None else consistency.grace,
            patience=engine.patience or 0,
            graph=one.graph,
            progress=_core.PROGRESS[engine.progress],
            threads=launch.threads(),
            shared_params=bool(engine.shared_params),
            in_place=bool(engine.in_place),
            check_finite=bool(engine.check_finite),
            split=bool(engine.split),
            isa=_core.ISAS[self._isa],
            codecs=given.codecs.configs[keys],
        )

    def _open(self, given: Checked, names: tuple[str, ...]) -> None:
        """The keys and the parameters, as they lie in C. names: of the keys, as the user has them."""
        engine, facts, codecs = self._state.made.engine, self._state.facts, given.codecs.values
        shapes = {name: value.shape for name, value in given.values.items()}
        numbers = {name: i for i, name in enumerate(shapes)}
        keys: dict[str, KeyState] = {}
        for name in names:
            place, codec = (name, numbers[name], shapes[name], not facts[name].one_slot), codecs[name]
            if codec.name == "factors":
                keys[name] = FactorsKey(*place, codec, self._rank)
            elif isinstance(codec, Products):
                keys[name] = product = ProductKey(*place, codec, self._rank)
                product.into(partial(_gradient_of, ref(self), product))
            else:
                keys[name] = KeyState(*place[:3], codec.dtype, rotates=place[3])
        self._nbytes = sum(4 * math.prod(shape) for shape in shapes.values())
        self._begin(
            keys,
            finite=bool(engine.check_finite),
            learns=engine.patience is not None,
            settles=self._state.any.settles,
            products=any(isinstance(key, ProductKey) for key in keys.values()),
        )
        found = _core.exchange_params(self._handle, list(shapes.values()), not engine.shared_params)
        every = dict(zip(shapes, found, strict=False))  # none on a rank that only serves
        arrays = {name: every[name] for name in names if name in every}
        for name, array in arrays.items():
            keys[name].params = array
        if engine.in_place:
            self._train_in_place(arrays)
        self.params = Params(arrays, names, self._rank)

    def __repr__(self) -> str:
        return (
            f"<hpcomm.Exchange rank {self._rank}, {len(self._every)} keys of {self._nbytes} bytes, {self.rule}, "
            f"{len(self._state.rows)} rows owned{', closed' if self._closed else ''}>"
        )

    # ---- gradients -------------------------------------------------------------------------------------------------

    def gradient(self, name: str, timeout: float | None = None) -> NDArray[Any]:
        """The array that the next push of a key sends: the key's shape, writable, in the wire's dtype (bfloat16 is
        ml_dtypes.bfloat16 where that package is installed, else the bits as uint16).

        It waits until the slot is free again, and is valid until the push: with depth > 1 the next one is another.
        Its first content is not defined. With in_place it is params[name], when the last push is folded.
        """
        key = self._key(name)
        if isinstance(key, FactorsKey):
            raise InvalidArgument(
                f"rank {self._rank}: gradient: key {name!r} goes as {key.codec!r}: write its vectors into "
                f"factors({name!r})"
            )
        key.from_pairs = None
        return self._gradient(key, timeout)  # type: ignore[no-any-return]

    def factors(self, name: str, timeout: float | None = None) -> Pairs:
        """The pairs of vectors that the next push of a key sends, where its codec is Factors(K) (SFB, section 2): u, a
        float32 array (K, J), v, one of (K, D), and count, which says how many pairs there are. A push without data
        sends the first count of them.

            pairs = ex.factors("fc")
            pairs.u[:32], pairs.v[:32], pairs.count = output_gradients, inputs, 32
            ex.push_pull("fc")

        It waits until the memory is free again, and is valid until the push. Content and count stay as they are from
        push to push.

        Raises:
            InvalidArgument: the key has another codec.
        """
        key = self._key(name)
        if isinstance(key, ProductKey):
            key.from_pairs = key.pairs
            return key.pairs
        if not isinstance(key, FactorsKey):
            raise InvalidArgument(
                f"rank {self._rank}: factors: key {name!r} goes as {self.codecs[name]!r}: write its array, "
                f"gradient({name!r}), or give it codec.Factors(K)"
            )
        return self._gradient(key, timeout)  # type: ignore[no-any-return]

    # ---- push and pull ---------------------------------------------------------------------------------------------

    def push(self, name: str, grad: object = None, timeout: float | None = None) -> None:
        """Sends the gradient of a key, and returns when it is on its way (PHub, section 3.1).

        Args:
            name: of the key.
            grad: None or the array of gradient(name): the gradient is in place, and nothing is copied. Another float32
                array of the key's shape (C-contiguous; NumPy, the buffer protocol or DLPack) is copied once, and
                encoded if the wire is 16 bits wide; it is free to reuse on return. Where the codec is Factors(K): None
                sends the pairs in factors(name); a tuple (u, v) is copied: float32 arrays (k, J) and (k, D), single
                vectors (J,) and (D,), or lists of vectors. Each vector of a list is an array or a tuple (indices,
                values), and a tuple for u or v is one such vector. k may be 0 to K.
            timeout: seconds to wait while the owner has no room for one more event.

        Raises:
            InvalidArgument: an unknown key, another dtype or shape, NaN or Inf with check_finite, a rank that is no
                worker, a closed exchange, or too many pending pushes of the key: one under BSP, and under ASYNC and
                SSP with a Hierarchy; otherwise depth under ASYNC (under SSP push waits). pull, gradient and the handle
                of push_nb wait for pending pushes. Nothing has been sent then.
        """
        self._sent(_start, name, PUSH, grad, timeout)

    def pull(self, name: str, timeout: float | None = None) -> NDArray[np.float32]:
        """The parameters of a key, params[name]: under BSP once the last push is applied, under ASYNC as their owners
        have them now, under SSP as soon as they are fresh enough; under both with a Hierarchy as they came with the
        answer to the last push. It also ends a push or a push_pull that a Timeout or Ctrl-C has cut short."""
        return self._sent(_call, name, PULL, None, timeout)[0].params  # type: ignore[no-any-return]

    def push_pull(self, name: str, grad: object = None, timeout: float | None = None) -> NDArray[np.float32]:
        """push, then pull, in one round (PHub, section 3.1). See push and pull.

        After a Timeout or Ctrl-C the gradient is on its way, or partly: pull(name) waits for it, and nothing is lost.
        A Timeout in the wait for a free slot (SSP, graphs) says that nothing was sent: make the call again.
        """
        return self._sent(_call, name, PUSH_PULL, grad, timeout)[0].params  # type: ignore[no-any-return]

    def push_nb(self, name: str, grad: object = None, timeout: float | None = None) -> Handle:
        """push, with a handle whose end means that the update has been applied and its slot is free again."""
        key, ticket = self._sent(_start, name, PUSH, grad, timeout)
        return Handle(self, key, ticket, pulls=False)

    def pull_nb(self, name: str, timeout: float | None = None) -> Handle:
        """Starts a pull; wait of the handle returns the parameters."""
        key, ticket = self._sent(_start, name, PULL, None, timeout)
        return Handle(self, key, ticket, pulls=True)

    def push_pull_nb(self, name: str, grad: object = None, timeout: float | None = None) -> Handle:
        """Starts a push_pull; wait of the handle returns the parameters."""
        key, ticket = self._sent(_start, name, PUSH_PULL, grad, timeout)
        return Handle(self, key, ticket, pulls=True)

    def step(self, grads: Mapping[str, Any] | None = None, timeout: float | None = None) -> Params:
        """push_pull of every key: starts all of them, in the order given, then waits for all.

        After a Timeout or Ctrl-C the step is not lost: step() again, without gradients or with the same mapping, goes
        on where it stopped. Until it has ended, no key can be pushed or pulled otherwise.

        Args:
            grads: a gradient for each key, as push takes them. None: all are in place.
            timeout: seconds for the whole step; None means the context's default.

        Returns:
            params, with the new values.

        Raises:
            InvalidArgument: as push does; nothing of the step has been sent then.
        """
        with self.context.span("step"):
            self._take_step(grads, timeout)
        return self.params

    @property
    def split(self) -> TwoCalls:
        """The calls by which an exchange made with split=True folds and applies: fold, apply, skip, gather, squares."""
        return TwoCalls(self)

    def version(self, name: str | None = None) -> int:
        """How many folds the newest parameters that this rank knows of have had since the exchange was made: with a
        quorum this may be more than the pushes of this rank. Without a quorum it is the pushes of the key.

        Args:
            name: of the key, whose version with a quorum is its group's; None: the largest version of all keys.

        Raises:
            InvalidArgument: an unknown key, or a closed exchange.
        """
        self._check_open("version")
        return _core.exchange_version_of(self._handle, _core.EVERY_KEY if name is None else self._key(name).index)

    @property
    def late(self) -> tuple[str, ...]:
        """With a quorum: the keys whose last push by this rank, once it has ended, was late and left out, as a whole or
        in shares (the part of a key that one core owns). It costs microseconds, so ask it after every step."""
        self._check_open("late")
        if not _core.exchange_late(self._handle, -1):
            return ()
        return tuple(key.name for key in self._every.values() if _core.exchange_late(self._handle, key.index))

    # ---- the rule --------------------------------------------------------------------------------------------------

    @property
    def rule(self) -> RuleOrRules:
        """The rule with the hyper-parameters of this rank's next pushes; on a rank that only serves, of the last ones
        that came. Where keys differ, a dict by key."""
        return optim.gathered(self._state.rules_now())

    def set(self, *, keys: Iterable[str] | str | None = None, timeout: float | None = None, **changes: Any) -> None:
        """Changes hyper-parameters of the rule, e.g. set(lr=0.01), from this rank's next push of a key on.

        The values travel with that push, so the call waits for no rank, and pending pushes keep their values. Under
        BSP every worker sets the same values before the same push; where they differ the exchange ends in ConfigError.
        On a graph they are for this rank's own parameters, and under ASYNC and SSP for its own updates; with a
        Hierarchy for all updates of its host, whose ranks set the same.

        Args:
            keys: whose rules change; None means all.
            timeout: says nothing any more.
            changes: hyper-parameters by name.

        Raises:
            InvalidArgument: a rule has no hyper-parameter of that name, the value is out of its range, or a name is not
                a key's; nothing has changed then.
        """
        self._check_open("set")
        rules = self._state.rules
        names = list(rules) if keys is None else [keys] if isinstance(keys, str) else list(keys)
        before = {self._key(name).name: rules[name] for name in names}
        made = {id(rule): optim.changed(rule, changes) for rule in before.values()}  # keys share their rules
        if len(made) == 1 and len(before) == len(rules):
            _core.exchange_set_args(self._handle, _core.EVERY_KEY, optim.arguments(*made.values()))
        else:
            for name, rule in before.items():
                _core.exchange_set_args(self._handle, self._every[name].index, optim.arguments(made[id(rule)]))
        self._state.rules = {**rules, **{name: made[id(rule)] for name, rule in before.items()}}

    def set_codec(self, *, delta: float, keys: Iterable[str] | str | None = None, of: str | None = None) -> None:
        """Changes the delta of Threshold on this rank, from its next encodings on. Ranks may have different ones, as
        decoding a piece needs no delta; nothing is lost. It may be called at any time, by any thread.

        Args:
            delta: 0 or more, before it decays.
            keys: whose thresholds change; None means all keys that have one.
            of: "pushes" (this rank's as a worker), "folds" (which it sends on as an owner), or None for both.

        Raises:
            InvalidArgument: a name is no key, a key has no threshold or one that follows the network, or a value is out
                of range.
        """
        self._check_open("set_codec")
        if of not in _core.DELTA_OF:
            raise InvalidArgument(f"set_codec: of is {of!r}: must be 'pushes', 'folds' or None")
        names = [] if keys is None else [keys] if isinstance(keys, str) else list(keys)
        numbers = [_core.EVERY_KEY] if keys is None else [self._key(name).index for name in names]
        for key in numbers:
            _core.set_delta(self._handle, key, of, number("set_codec: delta", delta, 0, math.inf))

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self, out: dict[str, Any] | None = None) -> dict[str, Any]:
        """This rank's part of a checkpoint, a dict of arrays, ints and texts that numpy.savez takes: the rule, its
        arguments, the keys, and for each row that this rank owns its place, step, parameters and state; under ASYNC
        and SSP with servers also the clock.

        Args:
            out: the dict of an earlier call: its arrays are written again, and it is returned.

        A worker calls it after a step; a rank that only serves while no worker pushes, e.g. after serve. The shards of
        all ranks are the whole checkpoint. Under ASYNC and SSP others may push meanwhile: each row is copied between
        two updates. Under SSP it waits until this rank's pushes are applied. Checkpointer does all this every so many
        steps.

        Raises:
            NotSupported: in a user's plan an element has no owner, or several owners that fold it separately.
            InvalidArgument: a push or a pull of this rank is pending.
        """
        self._check_rows("state_dict")
        return self._state.saved(out)

    def load_state_dict(self, shards: Shard | Iterable[Shard], timeout: float | None = None) -> None:
        """Restores a checkpoint bit for bit: parameters, state, steps and the rule's hyper-parameters. Collective.
        Under ASYNC and SSP with servers clock is then the furthest worker's, on all ranks.

        Args:
            shards: a dict of state_dict, or several of them, in any order and of any plan for the same keys: together
                they must hold every element that this rank owns.
            timeout: seconds to wait for the other ranks.

        Raises:
            InvalidArgument: a shard is of another rule or other keys, elements are missing, or a push or pull is
                pending, here or on another rank; nothing has changed then, on any rank.
            ConfigError: the ranks' shards have different hyper-parameters.
        """
        limit, wrong = self._default, None
        try:
            limit = seconds(timeout, limit)
            self._check_rows("load_state_dict")
        except Exception as refused:  # the other ranks wait for this one
            wrong = refused
        self._state.restore(shards, wrong, limit)

    def _check_rows(self, op: str) -> None:
        self._check_idle(op)
        self._state.check_rows(op)

    @property
    def clock(self) -> int:
        """How many steps the rows of this rank have had since the start of the training; on a graph these are the
        trainer's own. With a quorum the clock of a straggler jumps when it catches up. Under ASYNC and SSP with
        servers, where rows count updates: the pushes of a key that this worker has begun since then. Read it while
        nothing is pending here, or after a rank has died. 0 on a rank that owns no rows, or that only serves under
        ASYNC or SSP."""
        return self._state.clock()

    # ---- serving, and the end --------------------------------------------------------------------------------------

    def together(self) -> AbstractContextManager[None]:
        """From here on starts of many small keys take few messages: they may be kept back, in their order, until the
        with block ends, or until one waits or some 64 KiB are kept. step() does so by itself.

            with ex.together():
                handles = [ex.push_pull_nb(name) for name in names]

        Start them at once, one after another: other ranks wait for messages that are kept back.
        """
        self._check_open("together")
        _core.exchange_together(self._handle, True)
        return self._apart()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        try:
            yield
        finally:
            if not self._closed:
                _core.exchange_together(self._handle, False)

    def progress(self) -> None:
        """Works for the rows that this rank owns, without waiting: for a trainer with inline progress that computes for
        long between two steps."""
        self._check_open("progress")
        _core.exchange_progress(self._handle)

    def serve(self, timeout: float | None = None) -> None:
        """Serves until every worker has closed its exchange. For ranks that are no workers. timeout: seconds; None
        means no deadline.

        Raises:
            InvalidArgument: this rank is a worker, which serves the others in its waits and in close.
            PeerFailed: a worker died.
        """
        self._check_open("serve")
        _core.exchange_serve(self._handle, seconds(timeout, math.inf))

    def stats(self) -> ExchangeStats:
        """This exchange's counts on this rank so far."""
        self._check_open("stats")
        stats = _core.exchange_stats(self._handle)
        calls = {name: stats.pop(name) for name in CALLS}
        del stats["timeout"]
        steps = _core.exchange_version(self._handle)
        return ExchangeStats(
            **stats,
            progress=_core.exchange_get_progress(self._handle),
            load=LoadStats(processor=self._processor.seconds(), **calls, steps=steps),
            by_inputs=_core.exchange_inputs(self._handle) if self.graph or stats["reduces"] else (),
            by_staleness=_core.exchange_staleness(self._handle) if self._settles else (),
            peers=tuple(PeerStats(**peer) for peer in _core.exchange_peers(self._handle, self.context.size)),
            traffic=tuple(Traffic(*entry) for entry in _core.exchange_traffic(self._handle, self.context.size)),
            codecs=self._codec_stats(),
        )

    def _codec_stats(self) -> dict[str, CodecStats]:
        why = {} if self._decided is None else self._decided.why
        between = None if self._decided is None else self._decided.between
        steps = _core.exchange_version(self._handle)
        found = {}
        for name, codec in self.codecs.items():
            if name not in why and codec.settings(()) is None:
                continue
            counts = _core.codec_stats(self._handle, self._every[name].index)
            gain = None
            if between is not None and steps and counts["pieces"]:
                working = counts["encode"] + counts["decode"]
                gain = saved_seconds(counts["bytes_before"], counts["bytes"], working, between) / steps
            index = self._every[name].index
            counts["delta_of_pushes"] = _core.delta_of(self._handle, index, "pushes")
            counts["delta_of_folds"] = _core.delta_of(self._handle, index, "folds")
            found[name] = CodecStats(repr(codec), **counts, gain=gain, why=why.get(name, ""))
        return found

    def close(self, timeout: float | None = None) -> None:
        """Tells every rank that no push comes from here any more; a second call is no error.

        It first waits for pending pushes and pulls. Where the others' pushes do not wait for this rank's own
        (under ASYNC or SSP, with a quorum, or if it only serves), a rank that owns rows serves the others until they
        have closed too. params stays valid. Keys that a step cut short has not pushed stay unpushed. With a quorum a
        last push that this rank did not wait for may find no quorum, as too many others have closed: context.notes and
        the logger tell of it.

        Raises:
            Timeout: not all of this was done in timeout seconds; close may be called again.
            PeerFailed: a pending push or pull can never end. The exchange is closed then.
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
            self._end()
            raise
        self._end()

    @property
    def _is_over(self) -> bool:
        """Whether it is closed, or its context is, or another context has taken the place of that."""
        return self._closed or self.context._is_over

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if raised is None:
            self.close()
            return
        with suppress(HpcommError):  # the first exception is the one to report
            self.close(0)


def _gradient_of(exchange: "ref[Exchange]", key: KeyState) -> NDArray[Any]:
    """The array that the next push of a key sends."""
    found = exchange()
    assert found is not None
    return found._gradient(key, None)  # type: ignore[no-any-return]
