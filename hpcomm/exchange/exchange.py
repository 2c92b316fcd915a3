"""The exchange: a trainer pushes the gradients of its layers and pulls their parameters (PHub, section 3.1).

A key is a named tensor, such as a layer's weights. The arrays gradient(key) and params[key] lie in the exchange's
memory: a trainer that uses them copies nothing. A push of another array costs one copy.
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
from ..errors import HpcommError, InvalidArgument, NotSupported, Timeout
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
    from typing_extensions import Self, Unpack

_DEFAULT_TOPOLOGY = ParameterServer()
_DEFAULT_RULE = SGD()
_DEFAULT_ENGINE = EngineOptions()


class Exchange(Calls):
    """Exchanges a job's updates: workers push gradients, owners fold them and apply the rule, workers pull parameters.

    As in PHub (sections 3.1 to 3.2.4), keys are cut into chunks, and one core of one server owns each chunk for life.
    This core folds, applies and sends back the chunks of a key as soon as their updates have come, while other keys
    still travel. Owners on a worker's host read and write the worker's gradients and parameters in place.

    Creating an exchange is collective: every rank must give the same keys in the same order and the same settings
    (only progress, patience and weight may differ). If one rank's arguments are refused, every rank raises.

    Args:
        ctx: the ranks of the job.
        params: an ordered mapping of names to float32 arrays (C-contiguous, native byte order), which are copied. Each
            name with its array's shape is a key. Every rank starts from rank 0's values. A rank that only serves must
            give the same mapping.
        topology: which ranks serve, and how several NICs are used. One of these, or a mapping from names of keys to
            these; keys that the mapping does not name are flat:

            - ParameterServer(placement, servers, affinity, interfaces), or "flat": the one with default arguments.
            - Hierarchy: updates are folded inside each host first.
            - "auto": a Hierarchy if ranks share hosts and the consistency is BSP without further options, otherwise
              "flat".
            - PeerToPeer: every rank applies the updates of all ranks to its own parameters (SFB, section 3); for BSP,
              SSP(s) and ASYNC.
            - a Graph of hpcomm.graphs: every rank has its own parameters, and folds its update with its in-neighbours'
              updates, weighted as the graph says (ASAP, sections 3 and 4).
            - several graphs, which steps take in turn, or a function, such as hpcomm.graphs.root_expander, that returns
              the graphs for a number of ranks.
            - a Topology of your own.
        consistency: when a worker may continue. One of these, or a mapping from names of keys to these; keys that the
            mapping does not name are BSP:

            - BSP: a chunk's update is applied when every worker has pushed it.
            - ASYNC: each update is applied when it comes.
            - SSP(s): likewise, and no worker is more than s steps ahead of the slowest worker.
            - NOTIFY_ACK and BARRIER: for graphs; with servers they are the same as BSP.
            - Consistency(quorum=q, late="drop"): a fold needs the updates of only q workers (with a Hierarchy, of q
              hosts; on a graph, of q in-neighbours). `late` then names the keys whose update missed its fold.
        rule: SGD, Momentum, Nesterov, Adam, AdamW, ProxSGD, Dual, Average, Assign, or your own Rule; or a mapping that
            gives every key its rule. A key with a prox (ProxSGD, Dual) must be a 2-D array. None means SGD(lr=0.01),
            and rank 0 warns of this once.
        plan: PlanOptions: how the plan is made from the topology. Or a Plan that was made earlier: topology, which must
            then be one with servers, and the fields of PlanOptions are ignored.
        engine: EngineOptions: how the exchange works.
        options: some fields of plan and engine as keywords: codec, chunk_bytes, depth, reduce, split and progress.
            codec="float16" means plan=PlanOptions(codec="float16"). A keyword overrides the field of plan or engine.
        timeout: seconds to wait for the other ranks; None means the context's default.

    Attributes:
        params: the parameters by name: float32 arrays of the keys' shapes in the exchange's memory; empty on a rank
            that only serves. With shared_params they are read-only. They stay valid after close. Between a push and the
            end of the following pull their values change, so do not read them then. Without in_place never write them:
            a write would change the part that this rank owns for all ranks, and the next pull would undo the rest. Use
            load_state_dict or the rule Average to change parameters. With in_place the trainer writes the arrays, and
            each push replaces them: use the array that pull or push_pull returns, or look it up again.
        plan: which rank and core owns which chunk.
        graph: the graphs that the steps take in turn, for the first keys that are on graphs; () with servers.
        codecs: by name of the key: the codec of its updates, a value of hpcomm.codec, given or chosen by "auto".
        rule: the rule with its present hyper-parameters; if keys have different rules, a dict by key.

    **SSP(s) with servers.** A pull may end before its push is applied, so call gradient(name) before you write each
    gradient: it waits until the slot is free. A second pull without a push in between always asks the owners, which
    have applied all pushes before it. To get all updates into params at the end, every worker pulls each key in this
    way, calls Context.barrier, and pulls every key again.

    **SSP(s) and ASYNC with a Hierarchy**, or with a plan of several stages: for all keys of this consistency, flat ones
    too, parameters come with the answer to a push. So a pull without a push brings nothing new, and a key may have one
    pending push. To get all updates into params, every worker pulls every push, calls Context.barrier, and calls
    load_state_dict(state_dict()).

    **A quorum.** A worker must push every key once a step, and pull all keys before the next step; each of several
    groups of keys has its own steps. A straggler's parameters stay as they are until it pushes. This push ends at once
    with the newest parameters, and `late` names its key. With a Hierarchy a host is late as a whole, and all its ranks
    are told.

    **Schemes.** Keys with the same consistency, and with servers, one graph or the same peers, form a scheme. Each
    scheme works as a separate exchange would; all have the same workers. With several schemes, reduce has an effect
    with servers and peers only, shared_params needs BSP for all keys, in_place needs graphs, and recover needs BSP with
    servers or peers. Checkpoints hold all keys.

    From a push until the following pull has returned, the key's gradient and parameters belong to the exchange. The
    nonblocking calls end in _nb and return a Handle. Only one thread of a rank may use an exchange at a time. Calls
    release the GIL while they wait, and Ctrl-C ends every wait. After close, every method but close raises
    InvalidArgument. A wait that fails raises Timeout or PeerFailed, which name the ranks still waited for.

    Raises:
        InvalidArgument: an argument is wrong, here or on another rank.
        ConfigError: ranks gave different arguments; every rank raises it.
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

    _isa = "best"  # the instruction set of the kernels; tests check that all sets give the same bits

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
        """Makes the exchange in C, with a configuration for each scheme."""
        # rules and codecs whose machine code must live as long as the engine
        keep = (tuple(given.rules.values()), given.codecs.keep, given.codecs.configs)
        configs, end = [], 0
        for one in given.schemes:
            start, end = end, end + len(one.scheme.names)
            configs.append(self._configuration(given, one, slice(start, end), engine))
        self._announce([one.plan for one in given.schemes], configs)
        return _core.exchange_create(self.context._handle, timeout, keep, configs)

    def _announce(self, plans: list[Plan], configs: list[Any]) -> None:
        """Is called with the plans and the configurations of the schemes before the exchange is made in C."""

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
            weight=engine.weight,
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
        """Takes the keys and the parameter arrays from C. names: the keys in the user's order; C may have another."""
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
        every = dict(zip(shapes, found, strict=False))  # found is empty on a rank that only serves
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
        """Returns the array that the next push of a key sends, once its slot is free.

        The array is writable, has the key's shape and the dtype of the key's codec. For bfloat16 the dtype is
        ml_dtypes.bfloat16 if that package is installed, otherwise uint16 with the bits of bfloat16. The array is valid
        until the push; with depth > 1 the next push sends another array. Its first values are undefined. With in_place
        it is params[name], and the call waits until the last push is folded.

        Raises:
            InvalidArgument: the key's codec is Factors(K): write its vectors into factors(name).
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
        """Returns the pairs of vectors that the next push of a key sends, for a key with the codec Factors(K) (SFB,
        section 2): u and v, float32 arrays of shapes (K, J) and (K, D), and count, which the trainer sets. A push
        without an array sends the first count pairs.

            pairs = ex.factors("fc")
            pairs.u[:32], pairs.v[:32], pairs.count = output_gradients, inputs, 32
            ex.push_pull("fc")

        The call waits until the memory is free again. The arrays are valid until the push. Values and count are kept
        from push to push.

        Raises:
            InvalidArgument: the key's codec takes no pairs of vectors.
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
        """Sends the gradient of a key, and returns when the gradient is on its way (PHub, section 3.1).

        Args:
            name: the key's name.
            grad: the gradient. None, or the array that gradient(name) returned, sends that array without a copy.
                Another float32 array of the key's shape (C-contiguous; NumPy, the buffer protocol or DLPack) is copied
                once, and encoded if the codec has 16 bits; the caller may reuse it on return. With the codec
                Factors(K), None sends the pairs in factors(name), and a tuple (u, v) is copied: float32 arrays of
                shapes (k, J) and (k, D) with k from 0 to K, single vectors (J,) and (D,), or lists of vectors. A vector
                may be an array or, if it is sparse, a tuple (indices, values).
            timeout: seconds to wait while the owner has no room for one more event; None means the context's default.

        Raises:
            InvalidArgument: nothing has been sent. The key is unknown; dtype or shape is wrong; check_finite finds NaN
                or Inf; this rank is no worker; the exchange is closed; or the key has too many pending pushes. The
                limit is depth under ASYNC without a Hierarchy, otherwise one; under SSP without a Hierarchy push waits
                for a free slot instead. pull, gradient and the handle of push_nb wait for pending pushes.
        """
        self._sent(_start, name, PUSH, grad, timeout)

    def pull(self, name: str, timeout: float | None = None) -> NDArray[np.float32]:
        """Waits for the parameters of a key, and returns params[name].

        Under BSP they contain the last push. Under ASYNC they are the owners' present parameters. Under SSP(s) the call
        returns as soon as this rank's copy is fresh enough. Under ASYNC or SSP(s) with a Hierarchy they are the
        parameters that came with the answer to the last push. After a Timeout or Ctrl-C in a push or push_pull, pull
        finishes that call.
        """
        return self._sent(_call, name, PULL, None, timeout)[0].params  # type: ignore[no-any-return]

    def push_pull(self, name: str, grad: object = None, timeout: float | None = None) -> NDArray[np.float32]:
        """push, then pull, in one round (PHub, section 3.1). See push and pull.

        After a Timeout or Ctrl-C all or part of the gradient is on its way: pull(name) sends the rest and waits, so
        nothing is lost. The exception is a Timeout in the wait for a free slot (SSP, graphs): its message says that
        nothing was sent, so call push_pull again.
        """
        return self._sent(_call, name, PUSH_PULL, grad, timeout)[0].params  # type: ignore[no-any-return]

    def push_nb(self, name: str, grad: object = None, timeout: float | None = None) -> Handle:
        """Starts a push; wait of the handle returns when the update is applied and its slot is free again."""
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
        """Does a push_pull of every key: starts them all in the order of grads, then waits for all.

        After a Timeout or Ctrl-C the step is not lost: call step again, without gradients or with the same mapping, and
        it continues where it stopped. Until the step has ended, any other push or pull raises InvalidArgument.

        Args:
            grads: a gradient for each key, as push takes it. None sends the array of gradient(name) for every key.
            timeout: seconds for the whole step; None means the context's default.

        Returns:
            params, with the new values.

        Raises:
            InvalidArgument: as in push; nothing of the step has been sent.
        """
        with self.context.span("step"):
            self._take_step(grads, timeout)
        return self.params

    @property
    def split(self) -> TwoCalls:
        """The calls of an exchange that was made with split=True: fold, apply, skip, gather and squares (TwoCalls)."""
        return TwoCalls(self)

    def version(self, name: str | None = None) -> int:
        """Returns how many folds the newest parameters that this rank knows of contain, counted since the exchange was
        made. With a quorum this may exceed the number of this rank's pushes. Without one it is the number of this
        rank's pushes of the key.

        Args:
            name: the key's name; with a quorum all keys of a group have one version. None returns the largest version
                of all keys.

        Raises:
            InvalidArgument: the key is unknown, or the exchange is closed.
        """
        self._check_open("version")
        return _core.exchange_version_of(self._handle, _core.EVERY_KEY if name is None else self._key(name).index)

    @property
    def late(self) -> tuple[str, ...]:
        """With a quorum, the keys whose last push by this rank missed its fold, so that the update was left out: as a
        whole, or in some shares (the parts of a key on one core). It is valid once the push has ended, and costs
        microseconds, so read it after every step. Without a quorum it is empty."""
        self._check_open("late")
        if not _core.exchange_late(self._handle, -1):
            return ()
        return tuple(key.name for key in self._every.values() if _core.exchange_late(self._handle, key.index))

    # ---- the rule --------------------------------------------------------------------------------------------------

    @property
    def rule(self) -> RuleOrRules:
        """The rule with the hyper-parameters of this rank's next pushes; on a rank that only serves, the values
        that came with the last pushes. If keys have different rules, a dict by key."""
        return optim.gathered(self._state.rules_now())

    def set(self, *, keys: Iterable[str] | str | None = None, timeout: float | None = None, **changes: Any) -> None:
        """Changes hyper-parameters of the rule, e.g. set(lr=0.01), from this rank's next push of each key on.

        The values travel with this push, so the call does not wait, and pending pushes keep their values. With split
        they travel with the next apply. Which updates they affect depends on the consistency:

        - BSP: all. Every worker must set the same values before the same push; otherwise the exchange ends with
          ConfigError.
        - A quorum: the values of the lowest rank in a fold count.
        - ASYNC and SSP: this rank's own updates; with a Hierarchy all updates of its host, and all ranks of the host
          must set the same.
        - On a graph: this rank's own parameters.

        Args:
            keys: the keys whose rules change; None means all.
            timeout: has no effect, as the call does not wait.
            changes: hyper-parameters by name.

        Raises:
            InvalidArgument: a rule has no hyper-parameter of this name, a value is out of range, or a key is unknown.
                Nothing has changed.
        """
        self._check_open("set")
        rules = self._state.rules
        names = list(rules) if keys is None else [keys] if isinstance(keys, str) else list(keys)
        before = {self._key(name).name: rules[name] for name in names}
        made = {id(rule): optim.changed(rule, changes) for rule in before.values()}  # keys may share a rule
        if len(made) == 1 and len(before) == len(rules):
            _core.exchange_set_args(self._handle, _core.EVERY_KEY, optim.arguments(*made.values()))
        else:
            for name, rule in before.items():
                _core.exchange_set_args(self._handle, self._every[name].index, optim.arguments(made[id(rule)]))
        self._state.rules = {**rules, **{name: made[id(rule)] for name, rule in before.items()}}

    def set_codec(self, *, delta: float, keys: Iterable[str] | str | None = None, of: str | None = None) -> None:
        """Changes the delta of the codec Threshold on this rank, from its next encoding on.

        Ranks may have different deltas, as a decoder needs none. Values below the new delta stay in the residual, so
        none is lost. Any thread may call this at any time.

        Args:
            delta: the threshold before decay, 0 or more.
            keys: the keys whose delta changes; None means all keys with the codec Threshold.
            of: the encodings whose delta changes: "pushes" (this rank's updates as a worker), "folds" (sums that it
                sends on as an owner), or None for both.

        Raises:
            InvalidArgument: a key is unknown, has no threshold or one that follows the network, or a value is out of
                range.
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
        """Returns this rank's shard of a checkpoint: a dict of arrays, ints and strings that numpy.savez takes.

        It holds the rule, the rule's arguments, the keys, and for each row that this rank owns the row's place, step,
        parameters and state; under ASYNC and SSP with servers also the clock. The shards of all ranks are the whole
        checkpoint. A worker calls this after a step; a rank that only serves calls it while no worker pushes, e.g.
        after serve. Under ASYNC and SSP others may push meanwhile, as each row is copied between two updates; under SSP
        the call first waits until this rank's pushes are applied. A Checkpointer makes these calls at intervals.

        Args:
            out: a dict that an earlier call returned: its arrays are overwritten, and it is returned. None makes
                a new dict.

        Raises:
            NotSupported: in a user's plan an element has no owner, or several owners that fold it separately.
            InvalidArgument: a push or a pull of this rank is pending.
        """
        self._check_rows("state_dict")
        return self._state.saved(out)

    def load_state_dict(self, shards: Shard | Iterable[Shard], timeout: float | None = None) -> None:
        """Restores a checkpoint bit for bit: parameters, state, steps and the rule's hyper-parameters. Collective.

        Under ASYNC and SSP with servers, clock is then the furthest worker's clock on all ranks.

        Args:
            shards: a dict that state_dict returned, or several, in any order, from any plan for the same keys. Together
                they must hold every element that this rank owns.
            timeout: seconds to wait for the other ranks; None means the context's default.

        Raises:
            InvalidArgument: here or on another rank a shard has another rule or other keys, elements are missing, or a
                push or pull is pending. Nothing has changed on any rank.
            ConfigError: the ranks' shards have different hyper-parameters.
        """
        limit, wrong = self._default, None
        try:
            limit = seconds(timeout, limit)
            self._check_rows("load_state_dict")
        except Exception as refused:  # restore tells it to the other ranks, which wait for this one
            wrong = refused
        self._state.restore(shards, wrong, limit)

    def save(self, timeout: float | None = None) -> int:
        """Lets the hubs of the exchange save it: HubExchange.save. Other exchanges raise NotSupported."""
        raise NotSupported("save: no hub serves this exchange: use a Checkpointer, or state_dict")

    def _check_rows(self, op: str) -> None:
        self._check_idle(op)
        self._state.check_rows(op)

    @property
    def clock(self) -> int:
        """The number of steps since the start of the training, earlier exchanges included.

        It counts the folds that this rank's rows have applied; on a graph these are the trainer's own steps. With
        a quorum a straggler's clock jumps when it catches up. Under ASYNC and SSP with servers, where rows count
        updates, it counts the pushes of a key that this worker has begun. It is 0 on a rank that owns no rows, or that
        only serves under ASYNC or SSP. Read it while nothing is pending on this rank, or after a rank has died."""
        return self._state.clock()

    # ---- serving, and the end --------------------------------------------------------------------------------------

    def together(self) -> AbstractContextManager[None]:
        """Returns a context manager in which the starts of many small keys travel in few messages.

            with ex.together():
                handles = [ex.push_pull_nb(name) for name in names]

        Starts may be kept back, in their order, until the block ends, a call waits, or 64 KiB are kept for one rank.
        So make all starts at once: other ranks wait for messages that are kept back. step() does this by itself.
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
        """Works on the rows that this rank owns, without waiting. A trainer with inline progress calls it now and then
        if it computes for long between two steps."""
        self._check_open("progress")
        _core.exchange_progress(self._handle)

    def serve(self, timeout: float | None = None) -> None:
        """Serves until every worker has closed its exchange. It is for ranks that only serve.

        Args:
            timeout: seconds; None means no deadline.

        Raises:
            InvalidArgument: this rank is a worker. Workers serve the others in their waits and in close.
            PeerFailed: a worker died.
            Timeout: a worker has not closed within timeout seconds.
        """
        self._check_open("serve")
        _core.exchange_serve(self._handle, seconds(timeout, math.inf))

    def stats(self) -> ExchangeStats:
        """Returns the counts of this exchange on this rank so far (pushes, bytes, waits); see hpcomm.stats."""
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
        """Waits for pending pushes and pulls, then tells every rank that this one pushes no more.

        A rank that owns rows then serves the others until they have closed too, if their pushes do not wait for its
        own: under ASYNC or SSP, with a quorum, or if it only serves. params stays valid. If a step was cut short, keys
        that it has not pushed stay unpushed. With a quorum, the last push may find no quorum because too many workers
        have closed; if no call has waited for it, context.notes and the logger report this. A second call of close does
        nothing.

        Raises:
            Timeout: not all of this was done in timeout seconds; close may be called again.
            PeerFailed: a pending push or pull can never end. The exchange is closed.
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
        """Whether the exchange or its context is closed, or another context has replaced this context."""
        return self._closed or self.context._is_over

    def __enter__(self) -> "Self":
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
