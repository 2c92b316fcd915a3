"""DistributedOptimizer: a torch optimizer that applies the mean of all ranks' gradients, or averages the ranks'
models."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .._core import named
from ..codec import Codecs, WireFormat
from ..consistency import BSP, Consistency
from ..context import Context
from ..errors import ConfigError, InvalidArgument, NotSupported, PeerFailed
from ..exchange import Exchange
from ..log import logger
from ..recovery import Recovered
from ..stage import whole
from ..stats import OptimizerStats
from . import beside, saved, state
from .asked import Asked, OptimizerArguments, asked_of
from .buffers import make_buffers
from .key import ParamKey
from .local import Neighbours
from .mode import Scaling
from .modes import serving, training
from .owned import Held, OwnedState
from .rules import Rules
from .split import Split
from .syncer import Layers, weakly
from .tensors import broadcast
from .ties import Ties, dropped
from .uneven import JoinBlock, Uneven
from .ways import Ways
from .workers import CollectiveCall, Workers, joined
from .wrapper import Wrapper, claim, steps_as_torch

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .start import Options


class DistributedOptimizer(Wrapper):
    """A torch optimizer that trains one model with all ranks (Poseidon, sections 3.1, 4.1 and 4.2). Collective.

        optimizer = hpcomm.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), ctx, model)

    Each rank computes the gradients of its batch, and the optimizer applies their mean over the ranks. With batches of
    equal size all ranks reach the same weights, up to rounding, as one process training on all the data. Every rank
    starts from rank 0's parameters and buffers. If the optimizer already has state, every rank also starts from rank
    0's state and param_groups.

    SGD (without dampening and maximize), Adam and AdamW (without amsgrad and maximize) become rules of the exchange:
    the rank that owns a parameter updates it, once for all ranks. Any other optimizer steps on every rank with the mean
    gradients, and rank 0 logs a warning. The DistributedOptimizer shares the param_groups of the wrapped optimizer, so
    a scheduler may be made for either.

    By default parameters are new when step() returns, as in torch. With overlap=True step() returns earlier. Each layer
    then waits for its own parameters before its forward pass. The first forward pass of a model in eval mode, and
    model.state_dict(), wait for all parameters. Call wait() before any other code reads or writes parameters.

    With apply="backward" parameters change before step(). p.grad lies in the exchange's memory: you may read it at any
    time, but change it only after synchronize().

    Args:
        optimizer: an optimizer of torch that has all parameters to train. Frozen parameters among them may be unfrozen
            later.
        ctx: the context of the ranks.
        model: the module that has these parameters. They must be float32, or bfloat16 or float16, for which the
            exchange keeps float32 masters. They must lie on the CPU or on one CUDA device (docs/torch.md). Compile a
            model before you pass it.
        apply: "step": gradients are exchanged while the backward pass runs, and step() applies them. "backward": each
            gradient is also applied as soon as all ranks have it, if nothing in this backward pass reads the weight
            again; this is fastest, but synchronize, clip_norm and GradScaler raise an error. "after": nothing is sent
            before step(), as with a plain parameter server (section 5); this is a baseline for comparisons.
        clip_norm: the largest norm of the mean gradient, as in torch.nn.utils.clip_grad_norm_; all ranks compute the
            same bits. SSP(s) and ASYNC apply each rank's update by itself, so there it limits the norm of each rank's
            own gradient. With a quorum it limits the norm of the mean over the ranks in the quorum.
        backward_passes_per_step: how many backward passes are summed on this rank before their gradient is exchanged.
        buffers: "local": each rank keeps its own buffers. "broadcast": all ranks take rank 0's after each step.
            "average": all ranks take the mean after each step. Buffers that are not floating-point are always local.
        sparse: "dense": sparse gradients are made dense and exchanged, with a warning. "refuse": sparse gradients raise
            an error.
        topology: a ParameterServer, a Hierarchy, or a graph, as hpcomm.stochastic_reduce takes it. With None,
            hpcomm.parameter_hub chooses from its options. On a graph the optimizer steps on each rank, which then
            averages its model with its neighbours' models.
        consistency: with servers BSP, SSP(s), ASYNC or a quorum; on a graph any consistency that Exchange takes there.
        codec: the codec of gradients, as Exchange takes it. A mapping has the names of the model's parameters as its
            keys.
        overlap: whether step() returns before the parameters have come. Between hosts this saves 2 to 9 % of a step (an
            LSTM's step takes from 7 % less to 2 % more). With None, init(overlap=) or HPCOMM_OVERLAP decides; the
            default is False.
        way: the form in which each linear layer's update is sent (Poseidon, section 3.2). The forms are "ps" (a matrix,
            through servers), "factors" (pairs of vectors, to all ranks), "adam" (pairs to one server, the matrix back)
            and "1bit". Give one form for all linear layers, or a mapping from names of parameters to forms; parameters
            that the mapping lacks get "ps". With "auto" hpcomm chooses a matrix or pairs, by the smaller time at the
            rates measured on this machine. With "paper" algorithm 1 chooses, which counts bytes. With None, init(way=)
            or HPCOMM_WAY decides; the default is "ps". Forms other than "ps" need apply="step" or "after", BSP, and an
            optimizer that becomes a rule. Keys named in topology= or codec= keep the form given there.
        batch: K, the most rows that a linear layer has in one step on one rank: samples times positions times calls.
            With None, the first step sends matrices, and then K is twice the most rows that any rank has had.
        revisit: after how many steps "auto" measures and decides again; None means never.
        lossy: whether "auto" also compares bfloat16, TopK(0.01) and OneBit() for each parameter of 4,096 elements or
            more. A list names other codecs to compare, such as [Threshold(1e-3)]. A change of way drops the codecs'
            residuals.
        skip_weight_grad: whether autograd skips the gradients of weights that are sent as pairs. p.grad then stays None
            unless synchronize fills it, and a call of torch.autograd.grad through such a layer adds to the layer's
            gradient.
        options: plan (PlanOptions), engine (EngineOptions), reduce, codec_out and progress, as in Exchange; placement
            and servers, as in ParameterServer; servers="hub" if ctx is of connect_service (docs/service.md), and then
            perhaps topology=Hierarchy(racks=..., top=...). With placement="NCC" or "NCS" some ranks only serve (PHub,
            section 2.2). Such a rank makes the same optimizer, and calls serve in place of the training loop. Means are
            then over the workers alone, exchange.plan.workers.

    Attributes:
        context: the context of the ranks.
        exchange: the exchange, which has the parameters by name. Call wait() before you use it. ModelCheckpointer saves
            it.

    Raises:
        InvalidArgument: this or another rank gave an invalid argument; or a parameter has a dtype that is not allowed,
            is not one of the model's, or lies on another device than the first parameter.
        ConfigError: ranks gave different arguments; or the optimizer has state on some rank but not on rank 0.
    """

    grad_scale: Tensor | None
    found_inf: Tensor

    @named("DistributedOptimizer()", every=True)
    def __init__(
        self,
        optimizer: Optimizer,
        ctx: Context,
        model: nn.Module,
        *,
        apply: Literal["step", "backward", "after"] = "step",
        clip_norm: float | None = None,
        backward_passes_per_step: int = 1,
        buffers: Literal["local", "broadcast", "average"] = "local",
        sparse: Literal["dense", "refuse"] = "dense",
        topology: Any = None,
        consistency: Consistency = BSP,
        codec: Codecs | None = None,
        overlap: bool | None = None,
        way: str | Mapping[str, str] | None = None,
        batch: int | None = None,
        revisit: int | None = None,
        skip_weight_grad: bool = False,
        lossy: bool | Sequence[WireFormat] = False,
        **options: "Unpack[Options]",
    ) -> None:
        if not isinstance(ctx, Context):
            raise InvalidArgument(f"ctx is {ctx!r}: must be a Context, see hpcomm.init")
        given = OptimizerArguments(
            apply=apply, clip_norm=clip_norm, backward_passes_per_step=backward_passes_per_step, buffers=buffers,
            sparse=sparse, topology=topology, consistency=consistency, codec=codec, overlap=overlap, way=way,
            batch=batch, revisit=revisit, skip_weight_grad=skip_weight_grad, lossy=lossy, options=options,
        )  # fmt: skip
        asked = asked_of(DistributedOptimizer, optimizer, ctx, model, given)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._wrapped, self._model = optimizer, model
        self.param_groups = optimizer.param_groups
        self._join: JoinBlock | None = None
        self._uneven = Uneven()
        self._held: Held | None = None
        self._hooked: dict[int, Any] = {}
        self._take_up(asked)
        self._tie(asked)
        self._ready = True

    def _take_up(self, asked: Asked) -> None:
        """Makes the exchange. Gives all ranks rank 0's buffers, and rank 0's parameters that are not in the
        exchange."""
        ctx, rules, optimizer = asked.context, asked.rules, asked.optimizer
        self.context, self._counts, self._rules, self._ways = ctx, asked.counts, rules, asked.ways
        self._overlap = asked.args.overlap
        asked.ways.begin()
        if not asked.on_graph and rules is None:
            why = "has no rule in the exchange" if steps_as_torch(optimizer) else "has a step() that is not torch's"
            _note(ctx, f"{type(optimizer).__name__} {why}: it steps on every rank by mean gradients")
        mode = self._mode = (training if ctx.rank in asked.workers else serving)(asked)
        if rules is not None and ctx.rank in asked.workers:
            rules.are_of(mode.exchange)  # at a hub a job may have come back to other ones
        mode.in_step = not asked.on_graph and asked.args.consistency == BSP
        mode.workers = Workers(ctx, asked.workers)
        there = {id(key.param) for key in asked.keys if rules is not None or asked.on_graph}
        broadcast(ctx, [p.data for p in self._model.parameters() if id(p) not in there])
        self._progress = {"progress": asked.args.options["engine"].progress}
        self._buffers = make_buffers(ctx, self._model, asked.args.buffers, mode.workers, self._progress)
        self._buffers_kind = asked.args.buffers
        mode.extra.append(self._buffers)

    def _tie(self, asked: Asked) -> None:
        """Puts hooks on the model and the wrapped optimizer. From here on the owners keep the optimizer's state."""
        keys, mode = asked.keys, self._mode
        self._layers = Layers(self.context, self._model, keys)
        self._layers.begin(mode)
        self._layers.on_load = weakly(self._loaded)
        self._hook()
        if asked.rules is not None:
            self._own_state(asked.loaded, asked.rules)
        self._watched = self._watch()
        self._guard_steps()
        more = (*self._watched, self._guard)
        self._ties = Ties(claim(self, keys), keys, self._wrapped, self._layers, self._hooked, more)
        finalize(self, dropped, mode, self._ties).atexit = False

    @torch.no_grad()
    def _own_state(self, loaded: Mapping[str, state.Loaded] | None, rules: Rules) -> None:
        """Makes the owners keep the optimizer's state from here on. They start with the state that the wrapped
        optimizer has."""
        me = ref(self)

        def reset(keys: Sequence[ParamKey]) -> None:
            mine = me()
            if mine is not None:
                mine._reset_state(keys)

        self._held = Held(self._mode.keys, rules.forms, self._counts, self._hooked, reset)
        if loaded is not None:
            state.load(self._mode.exchange, loaded)
            self._move()
            self._held.loaded(self._wrapped.state)
        self._owned, self._steps_by = OwnedState(self._held), _step_of(self._wrapped)
        self._wrapped.state = self._owned  # type: ignore[assignment]

    def _watch(self) -> list[RemovableHandle]:
        """Puts hooks on the wrapped optimizer. If it steps on each rank, the hook of load_state_dict follows the new
        param_groups. If the exchange has its rule, its load_state_dict and state_dict raise an error, since the owners
        keep the state."""

        def refused(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            raise _not_here("load_state_dict")

        def lacks(optimizer: Optimizer) -> None:
            if isinstance(optimizer.state, OwnedState):
                raise _not_here("state_dict")

        me = ref(self)

        def followed(optimizer: Optimizer) -> None:
            mine = me()
            if mine is not None:
                mine.param_groups = optimizer.param_groups

        wrapped = self._wrapped
        if self._rules is None:
            return [wrapped.register_load_state_dict_post_hook(followed)]
        return [wrapped.register_load_state_dict_pre_hook(refused), wrapped.register_state_dict_pre_hook(lacks)]

    def _set_state(self, value: Any) -> None:
        if self._held is None:
            super()._set_state(value)
        else:
            self._owned.replace(value)

    @named("the reset of optimizer.state", every=True)
    @torch.no_grad()
    def _reset_state(self, keys: Sequence[ParamKey]) -> None:
        """Resets the state of these keys to that of a new optimizer. Collective."""
        if self._join is not None:
            raise NotSupported(
                "optimizer.state is reset in a join block, where ranks that have run out of batches do not take part: "
                "reset it before the block or after it"
            )
        self._check_between("the reset of optimizer.state")
        self._mode.wait()
        told = hashlib.blake2b(repr([key.name for key in keys]).encode(), digest_size=8).digest()
        if len(set(self._workers.allgather(told))) > 1:
            raise ConfigError("ranks reset the state of different parameters: reset the same on every rank")
        assert self._rules is not None
        self._load(state.parse(keys, self._rules.forms, {}), drops=False)
        self._move()

    def _load(self, found: Mapping[str, state.Loaded], *, drops: bool) -> None:
        """Gives the owners this state, and the parameters that the trainer has written since the last step."""
        mode = self._mode
        mode.take_written()
        mode.workers.send(
            CollectiveCall.LOAD, lambda: state.bytes_of(found, [key.name for key in mode.keys], drops=drops)
        )
        state.load(mode.exchange, found, drops=drops)

    def _check_wrapped(self) -> None:
        """Raises if the wrapped optimizer was changed in a way that the exchange cannot follow."""
        if self._held is None:
            return
        wrapped, (own, of_class) = self._wrapped, self._steps_by
        if wrapped.state is not self._owned:
            raise NotSupported(
                f"the state of the {type(wrapped).__name__} that a DistributedOptimizer wraps was replaced, and the "
                "owners of the parameters keep it: reset the state of the DistributedOptimizer, or call its "
                "load_state_dict()"
            )
        if wrapped.__dict__.get("step") is not own or type(wrapped).step is not of_class:
            if not steps_as_torch(wrapped):
                raise NotSupported(
                    f"step() of the {type(wrapped).__name__} that a DistributedOptimizer wraps was replaced, and the "
                    "exchange applies its rule: replace step() before the optimizer is wrapped, and every rank calls it"
                )
            self._steps_by = _step_of(wrapped)

    def _hook(self) -> None:
        """Puts hooks on those trained parameters that have none yet."""
        if isinstance(self._mode, Neighbours):
            return
        for key in self._mode.keys:
            if key.param.requires_grad and id(key) not in self._hooked:
                self._hooked[id(key)] = key.param.register_post_accumulate_grad_hook(key.arrived)
                self._layers.hook(key)

    # ---- the trainer's calls -----------------------------------------------------------------------------------------

    @named("optimizer.step()", every=False)
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies the mean of all ranks' gradients from the backward passes since the last step. Collective.

        Returns the loss that closure returns; None without a closure. It returns when parameters and buffers are new.
        With overlap=True it returns as soon as the updates have begun (see wait()). closure must compute the loss and
        its gradients; it is called once.

        Raises:
            InvalidArgument: a gradient was changed after its exchange had begun.
            NotSupported: a GradScaler calls step() in a join block, on this rank or another.
            PeerFailed, Timeout: as in every call of the exchange. PeerFailed is also raised if another rank has ended
                after fewer steps: use join for unequal numbers of batches.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._mode.starts.drain()  # then all ranks raise the errors below after the same pushes
        self._check_wrapped()
        self._layers.settle()
        scaling = self._scaling()
        if self._join is not None:
            self._join.runs(scaling is not None)
        self._call_hooks(self._wrapped._optimizer_step_pre_hooks)
        made = self._mode.made()
        try:
            self._take(scaling)
        except PeerFailed as failed:
            raise self._mode.explained(failed, made) from failed
        except InvalidArgument:
            self._mode.starts.drain()  # then all ranks refuse after the same pushes
            raise
        self._call_hooks(self._wrapped._optimizer_step_post_hooks)
        return loss

    def _call_hooks(self, hooks: Mapping[int, Callable[..., Any]]) -> None:
        """Calls the step hooks of the wrapped optimizer if the exchange has its rule, since its own step() is then
        never called."""
        users = [hook for number, hook in hooks.items() if number != self._guard.id]
        if users and self._rules is not None:
            self.wait()
            for hook in users:
                hook(self._wrapped, (self._wrapped,), {})

    def _take(self, scaling: Scaling | None) -> None:
        with self.context.span("optimizer"), self._own_step():
            self._mode.step(scaling)
            self._wrapped._opt_called = True  # type: ignore[attr-defined]  # torch's schedulers check it
            self._buffers.step()
            if self._overlap:
                self._layers.wait_late()
            else:
                self._mode.wait()
        if isinstance(self._mode, Split) and self._mode.in_step:
            self._ways.after_step(self._mode)
        if len(self._hooked) < len(self._mode.keys):
            self._hook()

    def _follow(self) -> None:
        """Takes part in a step of the other ranks, after this rank has run out of batches."""
        for key in self._mode.keys:
            key.param.grad = None
        self._layers.settle()
        self._uneven.followed += 1
        self._take(None)

    @named("optimizer.zero_grad()", every=False)
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients as torch does. If it is called between backward() and step(), it also withdraws the
        gradients that were sent; then every rank must call it."""
        mode = self._mode
        if mode.begun or mode.touched:
            mode.forget()
        if not set_to_none:
            mode.wait()
        super().zero_grad(set_to_none)
        for key in self._mode.keys:
            key.sum = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a with block in which backward passes add to p.grad and send nothing. The first backward pass after
        the block sends the sum."""
        before, self._mode.quiet = self._mode.quiet, True
        try:
            yield
        finally:
            self._mode.quiet = before

    @named("optimizer.synchronize()", every=True)
    @torch.no_grad()
    def synchronize(self) -> None:
        """Waits for all gradients, and sets p.grad to the mean of all ranks. Collective.

        Call it before step(). Then you may read p.grad, or change it in the same way on all ranks (clip_grad_norm_,
        GradScaler.unscale_). Other consistencies than BSP differ:

        - Under SSP(s) and ASYNC p.grad stays this rank's own gradient, which may be changed in any way. The call is not
          collective.
        - With a quorum p.grad becomes the mean of the ranks that were in time, and may only be scaled. The call is not
          collective; with a quorum of hosts, it is collective over the ranks of each host. If the mean has already been
          applied, p.grad stays this rank's own gradient.

        Raises:
            NotSupported: apply is "backward", the topology is a graph, or this rank is in a join block.
            InvalidArgument: with a quorum, in a second call: p.grad was changed in another way than by a factor.
        """
        if self._join is not None:
            raise NotSupported("synchronize: ranks that have run out of batches do not take part: give clip_norm")
        self._mode.starts.drain()
        self._mode.synchronize()

    @named("optimizer.wait()", every=False)
    def wait(self) -> None:
        """Waits until the parameters of the last step have come. Then they may be read."""
        self._mode.wait()

    @property
    def ways(self) -> Ways:
        """The way of each layer, and why it was chosen. Print the value to see a table."""
        return self._ways

    @named("optimizer.measure_ways()", every=True)
    @torch.no_grad()
    def measure_ways(self, rounds: int = 3) -> Ways:
        """Exchanges each key alone, in some rounds, and adds the key's best time and its bytes to the table of ways.

        Collective. Call it after zero_grad() and before a backward pass; parameters stay as they are.

        Raises:
            NotSupported: the optimizer is not under apply="step" and BSP with servers, or some ranks only serve.
        """
        if not isinstance(self._mode, Split) or not self._mode.in_step:
            raise NotSupported('measure_ways: it needs apply="step", and BSP with servers')
        if self._workers.serving:
            raise NotSupported("measure_ways: it needs workers alone, and here ranks only serve")
        self._check_between("measure_ways()")
        self._mode.wait()
        self._ways.time(self._mode.exchange, whole("rounds", rounds, 1))
        return self._ways

    def stats(self) -> OptimizerStats:
        """Returns this rank's counts of steps, copies, bytes and waits."""
        for key in self._mode.keys:
            key.tally()
        return self._counts.stats()

    @named("optimizer.recover()", every=True)
    @torch.no_grad()
    def recover(
        self,
        checkpoint: str | PathLike[str] | None = None,
        timeout: float | None = None,
        *,
        survivors: bool = False,
    ) -> Recovered:
        """Continues with the remaining ranks after PeerFailed, as hpcomm.recover does. Collective over these ranks.

            except hpcomm.PeerFailed:
                step = optimizer.recover("checkpoints").clock

        Args:
            checkpoint: a directory of a ModelCheckpointer. Parameters whose owner died are restored from it.
            survivors: if True, parameters whose owner died come from the remaining ranks, their optimizer state becomes
                zero, and no checkpoint is needed.
            timeout: seconds for each part; None means the context's default.

        Returns:
            The result of hpcomm.recover(); its clock is the step to continue with. The attributes context and exchange
            are new objects afterwards.

        Raises:
            HpcommError: as hpcomm.recover.
        """
        mode = self._mode
        self._ways.lost()
        found = mode.recovered(checkpoint, timeout, survivors=survivors)
        self.context = mode.context = self._layers.context = found.exchange.context
        self._ways.recovered(self.context, found.exchange)
        if self._rules is not None:
            self._rules.are_of(found.exchange)
        extra: dict[str, Any] = {}
        mode.workers = Workers(self.context, found.exchange.plan.workers)
        if found.extra and not mode.workers.serves:
            side, extra = saved.unpacked(found.extra)
            self._load_torch_side(side)
        self._buffers = make_buffers(self.context, self._model, self._buffers_kind, mode.workers, self._progress)
        self._layers.replace(mode.extra[0], self._buffers)
        mode.extra = [self._buffers]
        self._uneven.followed = 0  # all ranks count their steps from here
        return replace(found, extra=extra)

    @named("optimizer.written()", every=True)
    def written(self) -> None:
        """Tells the exchange that the trainer has written parameters in place between two steps, with the same values
        on all ranks.

        Collective if owners keep other values than the parameters' (16-bit parameters, codec_out, SSP): owners then
        take the written values.
        """
        if any(key.apart for key in self._mode.keys):
            self._loaded()

    @named("optimizer.allgather()", every=True)
    def allgather(self, data: bytes) -> list[bytes]:
        """Returns the bytes that each worker gives, in the order of ranks. All workers must give equally many bytes.

        Collective over the workers. (Context.allgather would also wait for ranks that only serve.)
        """
        return self._workers.allgather(data)

    @named("optimizer.serve()", every=True)
    @torch.no_grad()
    def serve(self, timeout: float | None = None) -> None:
        """Serves until every worker has closed its optimizer. A rank that only serves calls it in place of the training
        loop.

        Such ranks exist with placement="NCC" or "NCS" (PHub, section 2.2). The call takes part in the workers' calls of
        state_dict, load_state_dict and model.load_state_dict, and in the saves of their ModelCheckpointer: make the
        ModelCheckpointer, and call restore, before this call. This rank's model keeps its old values.

        Args:
            timeout: seconds until Timeout is raised; None means no deadline.

        Raises:
            InvalidArgument: this rank is a worker; workers serve others in their own calls.
            PeerFailed: a rank died. To continue, every remaining rank calls optimizer.recover(), and this rank calls
                serve again.
            Timeout: some worker had not closed its optimizer after timeout seconds.
        """
        self._mode.serve(self._uneven.savers, timeout)

    @named("optimizer.close()", every=True)
    def close(self) -> None:
        """Waits for the last step, and takes the hooks off the model. The model keeps its parameters. A second call
        does nothing."""
        self._close(self._workers, self._mode, self._buffers)

    def _let_go(self) -> None:
        self._ties.cut()
        self._held = None

    @property
    def exchange(self) -> Exchange:
        """The exchange of the parameters. recover() replaces it."""
        return self._mode.exchange

    @property
    def _workers(self) -> Workers:
        return self._mode.workers

    # ---- state -------------------------------------------------------------------------------------------------------

    @named("optimizer.state_dict()", every=True)
    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the wrapped optimizer in torch's format, which the plain optimizer can load.

        Collective, because each owner has a part of the state. The state of a 16-bit parameter also has an entry
        "master", its float32 values. Codecs' residuals are not included; ModelCheckpointer saves them too.
        """
        self._check_between("state_dict()")
        self._settle()
        if self._rules is None:
            return self._wrapped.state_dict()
        self._check_wrapped()
        self._workers.tell(CollectiveCall.GATHER)
        return self._with_state(state.export(self._mode.exchange, self._mode.keys, self._rules.forms))

    def _with_state(self, found: dict[Tensor, Any]) -> dict[str, Any]:
        """Returns state_dict() of the wrapped optimizer, in which the state is replaced by found."""
        wrapped = self._wrapped
        if self._held is None:
            return wrapped.state_dict()
        wrapped.state = defaultdict(dict, found)
        try:
            return wrapped.state_dict()
        finally:
            wrapped.state = self._owned  # type: ignore[assignment]

    @named("optimizer.load_state_dict()", every=True)
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a plain optimizer or of a DistributedOptimizer. Drops codecs' residuals.

        Collective; every rank must give the same state.

        Raises:
            InvalidArgument: the state has other parameter groups or other shapes.
        """
        self._check_between("load_state_dict()")
        self._mode.wait()
        if self._rules is None:
            self._wrapped.load_state_dict(state_dict)
            return
        groups, theirs = self.param_groups, state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in theirs]:
            raise InvalidArgument("load_state_dict: the state is of other parameter groups")
        params = [p for group in groups for p in group["params"]]
        numbers = [n for group in theirs for n in group["params"]]
        by_number = dict(zip(numbers, params, strict=True))
        given = {by_number[n]: own for n, own in state_dict["state"].items() if n in by_number}
        found = state.parse(self._mode.keys, self._rules.forms, given)  # raises before anything is written
        self._load_groups(theirs)
        self._load(found, drops=True)
        self._move()
        assert self._held is not None
        self._held.loaded({param for param, own in given.items() if own})

    @torch.no_grad()
    def _settle(self) -> None:
        """Prepares a save: waits for all parameters, and gives the exchange the values that the trainer has written
        since then."""
        self._mode.wait()
        self._mode.take_written()

    def _check_between(self, op: str) -> None:
        if self._mode.begun:
            raise InvalidArgument(f"{op} came between backward and step, while gradients are exchanged: call it after")

    @named("model.load_state_dict()", every=True)
    @torch.no_grad()
    def _loaded(self) -> None:
        """Hook: load_state_dict has written the model or one of its modules."""
        mode = self._mode
        if not mode.has_params:
            return
        self._check_between("model.load_state_dict()")
        mode.find_homes()
        values = state.values_of(mode.keys)
        mode.workers.send(CollectiveCall.PUBLISH, lambda: joined([*values.values()]))
        state.publish(mode.exchange, values)
        self._move()

    def _torch_side(self) -> dict[str, Any]:
        """Returns the state that a checkpoint must have in addition to the exchange."""
        modules = {name: module.get_extra_state() for name, module in beside.states(self._model).items()}
        return {"optimizer": self._with_state({}), **self._tensors(), beside.STATES: modules}

    def _parts(self) -> dict[str, Any]:
        return {**self._tensors(), beside.STATES: beside.states(self._model)}

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """Returns those tensors of the model whose values are not in the exchange."""
        keys = self._mode.keys
        found = beside.tensors(self._model, [key.param for key in keys])
        if not self._mode.has_params:
            found["params"] = {key.name: key.param.data for key in keys}
        return found

    def _check_torch_side(self, found: dict[str, Any]) -> None:
        beside.check_groups(self.param_groups, found["optimizer"])
        beside.check(self._parts(), beside.of_older(self._model, found))

    @torch.no_grad()
    def _load_torch_side(self, found: dict[str, Any]) -> None:
        if self._rules is None:
            self._wrapped.load_state_dict(found["optimizer"])
        else:
            self._load_groups(found["optimizer"]["param_groups"])
            self._rules.are_of(self._mode.exchange)
            assert self._held is not None
            exchange = self._mode.exchange
            self._held.loaded({key.param for key in self._mode.keys if exchange._state.folds(key.name) > 0})
        beside.load(self._parts(), beside.of_older(self._model, found))
        self._move()

    def _load_groups(self, theirs: list[dict[str, Any]]) -> None:
        for group, own in zip(self.param_groups, theirs, strict=True):
            group.update({name: value for name, value in own.items() if name != "params"})

    def _move(self) -> None:
        self._mode.find_homes()
        for key in self._mode.keys:
            if key.home is not None:
                key.move()

    # ---- for torch ---------------------------------------------------------------------------------------------------

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """True. GradScaler.step reads it before it looks for Inf in p.grad, and then leaves unscaling to step(). In a
        join block step() refuses the scaler, since a rank that has run out of batches would not look for Inf."""
        if self._ready and self._join is None and (self._mode.begun or self._mode.touched):  # others may read it too
            self._check_scaler()
        return True

    @named("GradScaler.step()", every=True)
    @torch.no_grad()
    def _check_scaler(self) -> None:
        self._mode.starts.drain()
        self._mode.check_scaler()

    def _scaling(self) -> Scaling | None:
        found = self.__dict__.get("found_inf")
        if found is None:
            return None
        scale = self.__dict__.get("grad_scale")
        return Scaling(None if scale is None else float(scale), found)

    def __repr__(self) -> str:
        return f"Distributed{self._wrapped!r}"


# ---- how it is made --------------------------------------------------------------------------------------------------


def _step_of(optimizer: Optimizer) -> tuple[Any, Any]:
    """Returns the step() that the instance has itself, or None, and the step() of its class."""
    return optimizer.__dict__.get("step"), type(optimizer).step


def _not_here(call: str) -> InvalidArgument:
    return InvalidArgument(
        f"{call} of the optimizer that was given to a DistributedOptimizer, which keeps its state elsewhere: call that "
        "of the DistributedOptimizer, on every rank"
    )


def _note(ctx: Context, sentence: str) -> None:
    """Logs a warning on rank 0 only."""
    if ctx.rank == 0:
        logger.warning("%s", sentence)
