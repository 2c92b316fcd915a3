"""DiLoCo: a torch optimizer that steps on each rank alone. Once in H steps ranks exchange how far their parameters have
moved."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._core import named
from ..codec import Codecs
from ..consistency import BSP, Consistency
from ..context import Context
from ..errors import InvalidArgument, NotSupported, PeerFailed
from ..exchange import Exchange
from ..local import LocalSteps, Strided
from ..local.agree import check_exchange, digest_of, tell
from ..local.fragments import Fragments, fragments_of
from ..local.roll_call import MATES, RollCall
from ..local.schedule import Schedule
from ..optim import Nesterov, RuleOrRules
from ..recovery import Recovered
from ..stats import LocalStats
from ..topology.given import as_topology
from . import beside
from .counts import Counts
from .key import ParamKey
from .model_values import ModelValues
from .names import parameters, plain_keys, plain_name
from .optimizer import DistributedOptimizer
from .start import Offer, agree, check_options, exchange_options, given_of, keys_of, made, model_digest, placed
from .tensors import broadcast
from .uneven import LocalBlock, Uneven
from .wrapper import Wrapper, check_free, check_kinds, claim, release

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .start import Options

_OUTER = Nesterov(lr=0.7, momentum=0.9)  # the outer optimizer of DiLoCo
_LOCAL = "local_steps"  # the key in a state_dict for all state except the inner optimizer's
_SINCE = "since"  # the key in that entry for the result of LocalSteps.since


class DiLoCo(Wrapper):
    """A torch optimizer for ranks that are connected by slow links. Collective.

    Each rank trains its own copy of the model, and once in H steps the ranks exchange how far their parameters have
    moved (DiLoCo, arXiv 2311.08105, algorithm 1; with fragments, delay and mix: Streaming DiLoCo, arXiv 2501.18512,
    algorithm 2).

        inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        optimizer = hpcomm.torch.DiLoCo(inner, ctx, model, every=50, fragments=4, delay=5)
        for batch in batches:
            loss(model(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.sync()        # all ranks have the same weights now

    A rank's update is *parameters at the last exchange minus parameters now*. The owners use the mean of all ranks'
    updates as the gradient of the outer rule. Every rank starts from rank 0's parameters and buffers; later each rank
    keeps its own buffers and its own state of the inner optimizer. Schedulers, clipping, accumulation and torch.compile
    work as with the inner optimizer alone. A step that a GradScaler skips on one rank still counts as a step.

    Load weights into the model before you wrap it: if weights are loaded later, the change counts as this rank's
    update.

    Args:
        inner: an optimizer of torch, which trains on each rank alone. Or a DistributedOptimizer over a context of this
            host's ranks; these ranks then train together (see docs/local_steps.md).
        ctx: the context of the ranks.
        model: the module that has these parameters. They must be float32, or bfloat16 or float16; for 16-bit parameters
            the exchange keeps float32 values.
        outer: the outer optimizer, a rule of hpcomm. With SGD(lr=1), which is local SGD, ranks take the mean of their
            models. With codec=TopK(...) as well it is SparseLoCo (arXiv 2508.15706).
        every: H, the number of a rank's steps from one exchange of a fragment to its next, 1 or more.
        fragments: the parts of the model that are exchanged separately. Their exchanges are spread evenly over H steps.
            A number n makes n groups of neighbouring layers, with about the same number of elements each.
            hpcomm.local.Strided(n) deals layers to n fragments in turn. A list names the fragments: each is a module, a
            name of a parameter, or a list of these; each parameter must be in exactly one fragment.
        delay: tau, the number of steps between the start of an exchange and the take of its parameters, 0 to H - 1.
            Training continues meanwhile. With a delay, the default of progress is "thread".
        mix: the weight of the new parameters when a rank takes them, above 0 and at most 1 (1 - alpha in the paper);
            its own parameters get the rest. With a mix below 1, codecs that keep a residual are refused.
        codec: the codec of updates, as Exchange takes it. A mapping has the names of the model's parameters as its
            keys. With apply_at="receivers" the folded updates are also encoded on their way back.
        topology: a ParameterServer, a Hierarchy or a PeerToPeer. With None, hpcomm.parameter_hub chooses.
        consistency: BSP, SSP(s) or a quorum. Under SSP(s) a rank may be s exchanges of a fragment ahead of the slowest
            rank. With a quorum, exchanges proceed without late ranks; a late rank then takes the newest parameters and
            continues.
        options: as in DistributedOptimizer. Set apply_at and other fields of a ParameterServer by the argument
            topology.

    Attributes:
        context: the context of the ranks.
        exchange: the exchange, which has the shared parameters by name. Call wait() before you read it.

    Raises:
        InvalidArgument: this or another rank gave an invalid argument: the topology is a graph; every is below 1; delay
            is not below every; fragments leave out or repeat a parameter; mix is outside (0, 1]; or a parameter is not
            one of the model's, or lies on another device than the first parameter.
        ConfigError: ranks gave different arguments.
    """

    grad_scale: Tensor | None
    found_inf: Tensor
    _join: LocalBlock | None

    @named("DiLoCo()", every=True)
    def __init__(
        self,
        inner: Optimizer,
        ctx: Context,
        model: nn.Module,
        *,
        outer: RuleOrRules = _OUTER,
        every: int,
        fragments: "int | Strided | Iterable[Any]" = 1,
        delay: int = 0,
        mix: float = 1.0,
        codec: Codecs | None = None,
        topology: Any = None,
        consistency: Consistency = BSP,
        **options: "Unpack[Options]",
    ) -> None:
        if not isinstance(ctx, Context):
            raise InvalidArgument(f"ctx is {ctx!r}: must be a Context, see hpcomm.init")
        try:
            check_kinds(inner, model, DiLoCo, "inner")
            check_options(options, DiLoCo)
            _check_topology(topology, consistency)
            _check_all_train(placed(topology, options).roles(ctx.size)[0], ctx)
            if isinstance(inner, DistributedOptimizer):
                _check_all_train(inner._workers.ranks, inner.context)
            keys = keys_of(inner, model, Counts(), "dense", {})
            codec = plain_keys(model, codec)
            named = _names_of(fragments, keys, plain_name(model))
            found = fragments_of({key.name: key.param.numel() for key in keys}, named)
            schedule = Schedule(every, len(found), delay, mix)
            given = given_of(model, keys)
            ctx._sweep()
            check_free(keys, inner)
        except Exception as wrong:  # the other ranks wait for this one
            tell(ctx, wrong)
            raise
        tell(ctx, None, digest_of(schedule, found))
        agree(ctx, Offer("local", model_digest(given), has_state=False, packed=b""))
        asked = exchange_options(options, codec)
        asked["engine"] = replace(asked["engine"], groups=found)
        if delay and not {"progress", "engine"} & options.keys():  # no trainer waits and does the owners' work
            asked["engine"] = replace(asked["engine"], progress="thread")
        values = {key.name: key.value() for key in keys}
        exchange = made(ctx, values, topology, consistency, outer, asked)
        try:
            check_exchange(exchange, schedule, found)
        except InvalidArgument:  # the same arguments on all ranks, so all ranks raise
            exchange.close()
            raise
        own = ModelValues(keys, inner)
        mine = {id(key.param) for key in keys}
        broadcast(ctx, [p.data for p in model.parameters() if id(p) not in mine])
        broadcast(ctx, model.buffers())
        super().__init__(inner.param_groups, inner.defaults)
        self._wrapped, self._model = inner, model
        self.param_groups = inner.param_groups
        self._local = LocalSteps(exchange, own, schedule, found)
        self._uneven, self._join, self._own_steps = Uneven(), None, 0
        self._mates: RollCall | None = None
        self._owes_mates = False
        if isinstance(inner, DistributedOptimizer):
            self._meet_with(inner)
        own.begin()
        for name in values:
            own.take(name, exchange.params[name], 1.0)
        own.end()
        self._guard_steps()
        self._tied = (claim(self, keys), keys, self._guard)
        finalize(self, _dropped, self._local, *self._tied).atexit = False
        self._ready = True

    def _meet_with(self, inner: DistributedOptimizer) -> None:
        self._mates, self._owes_mates = RollCall(inner.context, 1), False

    @property
    def context(self) -> Context:
        """The context of the ranks. After DiLoCo.recover(), of the remaining ranks."""
        return self._local.context

    @property
    def exchange(self) -> Exchange:
        """The exchange of updates. DiLoCo.recover() replaces it."""
        return self._local.exchange

    @property
    def fragments(self) -> Fragments:
        """The names of each fragment's parameters."""
        return self._local.fragments

    # ---- the trainer's calls -----------------------------------------------------------------------------------------

    @named("optimizer.step()", every=False)
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the inner optimizer, takes the exchanges that began `delay` steps before, and begins all exchanges that
        are due.

        Returns the loss that closure returns; None without a closure. Waits for other ranks only if an exchange that it
        takes has not come yet.

        Raises:
            PeerFailed: a rank died: call recover(), and continue with the next step.
            Timeout: as in Exchange.push_pull. The step counts as made, and nothing is lost: continue training.
        """
        if self._owes_mates:  # the other ranks of the host wait for this one
            self.wait()
        self._own_steps += 1
        with self._own_step():
            loss = self._inner_step(closure)
        if self._mates is not None and self._local.schedule.waits(self._local.steps + 1):
            self._owes_mates = True
            self._tell_mates(self._mates, self._local.step)
        else:
            self._local.step()
        return loss

    def _tell_mates(self, mates: RollCall, call: Callable[[], None]) -> None:
        """Calls step or wait of the local steps, on ranks of a host that train together. If one of these ranks finds
        that a rank died, all of them raise PeerFailed after the same step; otherwise some would wait in the next step
        for ranks that recover. After a Timeout or Ctrl-C, wait() completes the step."""
        failed: PeerFailed | None = None
        try:
            call()
        except PeerFailed as found:
            failed = found
        told = mates.gather(MATES, [int(failed is not None)])
        self._owes_mates = False
        if failed is None and told.any():
            rank = int(told[:, 0].argmax())
            raise PeerFailed(f"rank {self.context.rank}: rank {rank} of this host's has found ranks gone", op="step")
        if failed is not None:
            raise failed

    def _inner_step(self, closure: Callable[[], Any] | None) -> Any:
        inner, found = self._wrapped, self.__dict__.get("found_inf")
        if found is None:
            return inner.step() if closure is None else inner.step(closure)
        scale = self.__dict__.get("grad_scale")  # set if a GradScaler calls; a step that it skips counts too
        if getattr(inner, "_step_supports_amp_scaling", False):
            inner.grad_scale, inner.found_inf = scale, found  # type: ignore[attr-defined]
            try:
                return inner.step()
            finally:
                del inner.grad_scale, inner.found_inf  # type: ignore[attr-defined]
        if float(found):
            return None
        if scale is not None:
            grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(grads, 1.0 / float(scale))
        return inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Calls zero_grad() of the inner optimizer."""
        self._wrapped.zero_grad(set_to_none)

    @named("optimizer.sync()", every=True)
    def sync(self) -> None:
        """Exchanges all fragments now and takes the new parameters with mix 1, so that all ranks have the same weights.

        Collective: every rank calls it after the same number of steps, at the end of the training or before an
        evaluation. After a Timeout or Ctrl-C call sync() again.
        """
        if self._owes_mates:
            self.wait()
        self._local.sync()

    @named("optimizer.wait()", every=False)
    def wait(self) -> None:
        """Waits until all begun exchanges have come. step() takes them when they are due. Also completes a step that a
        Timeout or Ctrl-C has interrupted."""
        if self._owes_mates and self._mates is not None:
            self._tell_mates(self._mates, self._local.wait)
        else:
            self._local.wait()

    def stats(self) -> LocalStats:
        """Returns how many steps this rank has made, and the bytes and seconds of each fragment's exchanges."""
        return self._local.stats()

    @named("optimizer.recover()", every=True)
    def recover(self, timeout: float | None = None) -> Recovered:
        """Continues with the remaining ranks after PeerFailed, without a checkpoint. Collective over these ranks.

            try:
                optimizer.step()
            except hpcomm.PeerFailed:
                optimizer.recover()

        The following are lost, and a warning says so:

        - the dead rank's steps since its last exchange, and its codec's residual;
        - if owners apply the outer rule: the momentum of the parameters that the dead rank owned.

        The steps of the remaining ranks stay. Under SSP and with a quorum, codecs that keep a residual may lose values
        that were being sent. recover() completes the step() or sync() that raised: continue with the next step, number
        clock + 1. If the inner optimizer is a DistributedOptimizer, it recovers too, and ranks of a host continue from
        the same step. Close a ModelCheckpointer before, and make another one afterwards.

        Returns:
            The result of hpcomm.recover(); its clock is this rank's number of steps. The attributes context and
            exchange are new objects afterwards.
        """
        if isinstance(self._wrapped, DistributedOptimizer):
            self._wrapped.recover(survivors=True, timeout=timeout)
            self.param_groups = self._wrapped.param_groups
            steps = self._wrapped.context.allgather(self._local.steps.to_bytes(8, "little"), timeout)
            self._local.steps = max(int.from_bytes(one, "little") for one in steps)
            self._meet_with(self._wrapped)
        self._uneven.followed = 0  # all ranks count their steps from this one
        return self._local.recover(timeout)

    @named("optimizer.close()", every=True)
    def close(self) -> None:
        """Closes the exchange. The model keeps this rank's parameters, and the inner optimizer stays usable. A second
        call does nothing."""
        self._close(self.exchange)

    def _let_go(self) -> None:
        _unhook(*self._tied)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Returns the block of hpcomm.torch.join for this optimizer."""
        if isinstance(self._wrapped, DistributedOptimizer):
            raise NotSupported(
                "join: ranks of a host train together, by a DistributedOptimizer: give them the same number of batches"
            )
        self._uneven.joined = True
        before = self._local.steps - self._own_steps
        try:
            with self._local.join():
                self._join = LocalBlock()
                yield
        finally:
            self._join = None
        self._uneven.followed += self._local.steps - self._own_steps - before

    # ---- state -------------------------------------------------------------------------------------------------------

    @named("optimizer.state_dict()", every=False)
    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state: the inner optimizer's state in torch's format, and under "local_steps" the number
        of steps and this rank's state of the exchange. Waits for pending exchanges.

        Ranks' weights differ, so every rank must save its own state together with its model.state_dict().
        ModelCheckpointer saves all of this.
        """
        self.wait()
        file = io.BytesIO()
        np.savez(file, **self.exchange.state_dict())
        outer = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
        return {**self._wrapped.state_dict(), _LOCAL: {**self._local_state(), "outer": outer}}

    def _local_state(self) -> dict[str, Any]:
        since = {name: torch.from_numpy(value) for name, value in self._local.since().items()}
        return {**self._local.progress(), _SINCE: since}

    @named("optimizer.load_state_dict()", every=True)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a result of this rank's state_dict(). Training then continues with the same bits, even if the state was
        saved while an exchange was pending.

        Load the model's weights as well. Collective; there must be as many ranks as when the state was saved.

        Raises:
            InvalidArgument: on this or another rank the state has no "local_steps", or has other local steps. Then
                nothing has changed.
        """
        state = dict(state_dict)
        local = state.pop(_LOCAL, None)
        try:
            if local is None:
                raise InvalidArgument(
                    "load_state_dict: this is the state of an inner optimizer alone: load that into the inner "
                    "optimizer before it is wrapped"
                )
            self._local.check_progress(local)
            with np.load(io.BytesIO(local["outer"].numpy().tobytes())) as file:
                shard = dict(file)
        except Exception as wrong:  # the other ranks wait for this one
            tell(self.context, wrong)
            raise
        tell(self.context, None)
        self.wait()
        self.exchange.load_state_dict(shard)
        self._load_inner(state)
        self._local.set_progress(local, local.get(_SINCE, {}))

    def _load_inner(self, state: dict[str, Any]) -> None:
        self._wrapped.load_state_dict(state)
        self.param_groups = self._wrapped.param_groups

    def _settle(self) -> None:
        """Waits for pending exchanges before a save. If the inner optimizer is a DistributedOptimizer, its state_dict()
        also gives its exchange the values that the trainer has written."""
        self.wait()

    def _torch_side(self) -> dict[str, Any]:
        """Returns the state that a checkpoint must have in addition to the exchange."""
        return {
            "optimizer": self._wrapped.state_dict(),
            **self._tensors(),
            beside.STATES: {name: module.get_extra_state() for name, module in beside.states(self._model).items()},
            _LOCAL: self._local_state(),
        }

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        params = {name: param.data for name, param in parameters(self._model)}
        return {**beside.tensors(self._model, self._model.parameters()), "params": params}

    def _parts(self) -> dict[str, Any]:
        return {**self._tensors(), beside.STATES: beside.states(self._model)}

    def _check_torch_side(self, found: dict[str, Any]) -> None:
        if _LOCAL not in found:
            raise InvalidArgument("restore: the checkpoint is of a DistributedOptimizer: give one, and no DiLoCo")
        self._local.check_progress(found[_LOCAL])
        beside.check_groups(self.param_groups, found["optimizer"])
        beside.check(self._parts(), beside.of_older(self._model, found))

    @torch.no_grad()
    def _load_torch_side(self, found: dict[str, Any]) -> None:
        self._load_inner(found["optimizer"])
        beside.load(self._parts(), beside.of_older(self._model, found))
        if isinstance(self._wrapped, DistributedOptimizer):
            self._wrapped.written()
        self._local.set_progress(found[_LOCAL], found[_LOCAL].get(_SINCE, {}))

    # ---- for torch ---------------------------------------------------------------------------------------------------

    @property
    @named("GradScaler.step()", every=True)
    def _step_supports_amp_scaling(self) -> bool:
        """True. GradScaler.step reads it, and then calls step() even if it finds Inf, so the step counts on every
        rank."""
        if self._ready:
            getattr(self._wrapped, "_step_supports_amp_scaling", False)  # here an inner optimizer's ranks agree
        return True

    def __repr__(self) -> str:
        return f"DiLoCo({self._wrapped!r}, {self._local!r})"


def _dropped(local: LocalSteps, *held: Any) -> None:
    """Closes the exchange of an optimizer that was dropped without close()."""
    _unhook(*held)
    local.exchange.context._drop(local.exchange)


def _unhook(owner: Any, keys: list[ParamKey], guard: Any) -> None:
    guard.remove()
    release(owner, keys)


# ---- how it is made --------------------------------------------------------------------------------------------------


def _check_topology(topology: Any, consistency: Any) -> None:
    if not isinstance(consistency, Consistency):
        raise InvalidArgument(f"consistency is {consistency!r}: must be a Consistency, one for all parameters")
    if as_topology("auto" if topology is None else topology).updates_of != "all":
        raise InvalidArgument(
            f"topology is {topology!r}: must be one in which the updates of all ranks count alike, and no graph"
        )


def _check_all_train(workers: Sequence[int], ctx: Context) -> None:
    if idle := sorted({*range(ctx.size)} - {*workers}):
        raise NotSupported(f"ranks {idle} would only serve: with a DiLoCo every rank is a worker: leave placement out")


def _names_of(fragments: Any, keys: list[ParamKey], plain: Callable[[str], str]) -> Any:
    """Returns the argument fragments with the names of parameters in place of modules."""
    if isinstance(fragments, int | Strided | str | bytes) or not isinstance(fragments, Iterable):
        return fragments
    names = {id(key.param): key.name for key in keys}

    def inside(one: Any) -> list[Any]:
        if isinstance(one, nn.Module):
            return [names[id(p)] for p in one.parameters() if id(p) in names]
        if isinstance(one, Iterable) and not isinstance(one, str | bytes):
            return [name for part in one for name in inside(part)]
        return [plain(one) if isinstance(one, str) else one]

    return [inside(one) for one in fragments]
