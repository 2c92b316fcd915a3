"""The state of the hook: when buckets are sent, and by which way."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..._core import named, seconds
from ...codec import Codecs
from ...context import Context
from ...errors import HpcommError, InvalidArgument
from ...local.agree import tell
from ...topology.given import Given
from ..backend.line import Line
from ..names import parameters, plain_keys
from . import coded, plain
from .bucket import SentBucket
from .coded import Coded, HookOptions, check_all_train, check_asked
from .group import check_size, context_of
from .plain import Plain

_FORMAT = 1
_CALL = "allreduce_hook"
_SAME = "model, or has a codec or a loaded state where others have none,"


class HookState:
    """The state of allreduce_hook, for one DistributedDataParallel model.

        ddp = torch.nn.parallel.DistributedDataParallel(model)
        state = hpcomm.torch.HookState(ctx, codec=hpcomm.codec.TopK(0.01), model=ddp)
        ddp.register_comm_hook(state, hpcomm.torch.allreduce_hook)

    DDP then gets the mean of all ranks' gradients from hpcomm, whatever its backend. Without a codec, one collective
    averages each bucket in place, in the bucket's dtype. With a codec, each parameter is a key of an exchange. The hook
    then takes gradients in float32, bfloat16 and float16, and sums in float32.

    Buckets are sent in the order of DDP. A helper thread sends those that are not the last one, while the backward pass
    goes on. The last bucket's hook waits for all of them. The first backward pass sends all buckets at its end, after
    all ranks have compared their arguments.

    Args:
        ctx: the context of DDP's ranks, from hpcomm.init(). Or a process group of torch, whose ranks then make a
            context through its store; None means the default group. Collective if it is no Context. While a backward
            pass runs, other threads must not call collectives of the context.
        codec: the codec of gradients, as Exchange takes it (hpcomm.codec), but not Factors. A mapping has the
            parameters' names as its keys, and needs model. None: no exchange.
        model: the DDP model, or the model in it. state_dict() and errors then have the names of its parameters.
            Without it a parameter's name is its dtype and its number among the parameters of this dtype that are
            trained, such as "float32.0"; register the hook before the first backward pass then.
        topology: with a codec: how gradients travel, as parameter_hub takes it. With
            ParameterServer(apply_at="receivers") the means are encoded as well.
        codec_out: with a codec: the dtype in which means are sent.
        timeout: seconds of each wait; None means the context's default.

    Attributes:
        context: the context.

    Raises:
        InvalidArgument: an argument is wrong. Errors that need DDP's buckets are raised by the first backward pass, on
            every rank, before anything is sent: the number of ranks differs from DDP's, a bucket is not on the CPU, or
            the codec does not take a gradient's dtype.
        ConfigError: ranks have different arguments or models; the first backward pass raises it.
    """

    context: Context

    def __init__(
        self,
        ctx: "Context | dist.ProcessGroup | None" = None,
        codec: Codecs | None = None,
        *,
        model: nn.Module | None = None,
        topology: Given = "auto",
        codec_out: Codecs | None = None,
        timeout: float | None = None,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise InvalidArgument(f"model is a {type(model).__name__}: must be a torch.nn.Module")
        if codec is None and not (topology == "auto" and codec_out is None):
            raise InvalidArgument('topology or codec_out is given without a codec: give codec="float32"')
        if isinstance(codec, Mapping) and model is None:
            raise InvalidArgument("codec is a mapping from names of parameters: give model=ddp, which has the names")
        self._model = model
        self._asked: HookOptions | None = None
        if codec is not None:
            self._asked = HookOptions(codec if model is None else plain_keys(model, codec), topology, codec_out)
            check_asked(self._asked)
        self.context, self._owns = context_of(ctx, timeout)
        self._timeout = seconds(timeout, self.context.config.timeout)
        self._way: Plain | Coded | None = None
        self._parts: list[SentBucket] = []  # of the backward pass that runs
        self._loaded: Mapping[str, Any] | None = None  # until the first backward pass
        self._line = Line()
        finalize(self, Line.end, self._line, joins=False).atexit = False

    def __repr__(self) -> str:
        codec = None if self._asked is None else self._asked.codec
        return f"<hpcomm.torch.HookState rank {self.context.rank} of {self.context.size}, codec {codec!r}>"

    def __reduce__(self) -> Any:
        raise InvalidArgument("a HookState cannot be copied or pickled: its state_dict() can")

    # ---- a backward pass ---------------------------------------------------------------------------------------------

    def _reduce(self, bucket: Any) -> "torch.futures.Future[Tensor]":
        if bucket.index() == 0 and self._parts:
            raise InvalidArgument(
                f"{_CALL}: the last backward pass has not sent all its buckets, and other ranks wait for them: start "
                "the job again"
            )
        part = SentBucket(bucket)
        self._parts.append(part)
        if bucket.is_last():
            self._finish(part)
        elif self._way is not None:
            self._line.add(part.start_by(self._way))
        return part.future

    @named(_CALL, every=True)
    def _finish(self, last: SentBucket) -> None:
        """Sends the last bucket of a backward pass, and waits for all means. The first pass sends all buckets here."""
        way = self._way
        if way is None:
            way = self._way = self._begun()
            waiting: Sequence[SentBucket] = self._parts
        else:
            self._line.settle()
            waiting = [last]
        for part in self._parts:
            if part.failure is not None:
                raise part.failure
        for part in waiting:
            way.send(part)
        for part in self._parts:
            way.take(part)
            part.future.set_result(part.buffer)
        self._parts = []

    def _begun(self) -> Plain | Coded:
        """Compares the arguments of all ranks after the first backward pass, and returns the way of this hook. Raises
        on every rank if a rank refuses."""
        ctx, keys = self.context, {}
        wrong: Exception | None = None
        told: list[Any] = [self._asked is None, self._loaded is None]  # an exchange compares its arguments itself
        try:
            check_size(ctx, self._model)
            if self._asked is None:
                for part in self._parts:
                    plain.check_reduced(part)
                    told.append((str(part.buffer.dtype), part.buffer.numel()))
            else:
                check_all_train(ctx, self._asked.topology)
                keys = coded.keys_of(self._parts, self._names())
                told += keys.values()
        except Exception as refused:  # the other ranks wait for this one
            wrong = refused
        digest = hashlib.blake2b(repr(told).encode(), digest_size=16).digest()
        tell(ctx, wrong, digest, what=_CALL, same=_SAME)
        if wrong is not None:
            raise wrong
        if self._asked is None:
            return Plain(ctx, self._timeout)
        made = Coded(ctx, keys, self._asked, self._timeout)
        if self._loaded is not None:
            made.restore(self._loaded)
            self._loaded = None
        return made

    def _names(self) -> dict[int, str]:
        """Returns the name of each parameter by id, in the order of the model."""
        if self._model is not None:
            named = {id(param): name for name, param in parameters(self._model)}
            strange = [param for part in self._parts for param in part.params if id(param) not in named]
            if strange:
                raise InvalidArgument(
                    f"HookState: model has no parameter of shape {tuple(strange[0].shape)} that DDP has: give the "
                    "model that DDP wraps"
                )
            return named
        # DDP fills its first buckets in the order of the model, and sends the last one first. Buckets have one dtype.
        found: dict[int, str] = {}
        counts: dict[torch.dtype, int] = {}
        for part in reversed(self._parts):
            for param in part.params:
                number = counts[param.dtype] = counts.get(param.dtype, -1) + 1
                found[id(param)] = f"{str(param.dtype).removeprefix('torch.')}.{number}"
        return found

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals: values that its codecs have not sent yet. torch.save takes the result.

        Each rank saves its own, after a step. "residuals" has a float32 tensor of the parameter's shape by name of each
        parameter; the other entries have what codecs need to go on with the same bits.
        """
        if self._parts:
            raise InvalidArgument("state_dict: a backward pass has not ended")
        if self._way is None and self._loaded is not None:
            return dict(self._loaded)
        whose = {"format": _FORMAT, "rank": self.context.rank, "ranks": self.context.size}
        return whose if self._way is None else {**whose, **self._way.saved()}

    @named("HookState.load_state_dict()", every=True)
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a result of this rank's state_dict(). Training then goes on with the same bits as without a break.

        All ranks load, after as many backward passes as each other. Before the first one the state is only kept: the
        first backward pass checks it and then raises these errors.

        Raises:
            InvalidArgument: the state is of another rank, another number of ranks or, on some rank, another model.
                Then nothing has changed on any rank.
        """
        whose = [state_dict.get(name) for name in ("format", "rank", "ranks")]
        if whose != [_FORMAT, self.context.rank, self.context.size]:
            raise InvalidArgument(
                f"load_state_dict: the state is of rank {whose[1]} of {whose[2]}, in format {whose[0]}: must be of "
                f"rank {self.context.rank} of {self.context.size}, in format {_FORMAT}: each rank loads its own; to "
                "start without residuals load none"
            )
        if self._way is None:
            self._loaded = dict(state_dict)
        else:
            self._way.restore(state_dict)

    def close(self) -> None:
        """Ends the helper thread, and closes the exchange, and the context if the state has made it. Call it on every
        rank after the last backward pass; a second call has no effect.

        After a backward pass that an exception has cut short, other ranks wait for this rank's buckets. A context that
        the state has made then tells them that this rank failed. A context that the trainer has given stays open, and
        close waits until the helper's send ends, at most for the timeout: close that context first.
        """
        was_cut = bool(self._parts)
        if was_cut and self._owns:
            self.context.abort("a backward pass was cut short")  # ends a send of the helper
        self._line.end()
        way, self._way = self._way, None
        with suppress(*(HpcommError,) if was_cut else ()):
            if way is not None:
                way.close()
        if self._owns:
            self.context.close()


def allreduce_hook(
    state: HookState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Averages one bucket of gradients over all ranks, for DistributedDataParallel.register_comm_hook.

    Args:
        state: the HookState of this model.
        bucket: the gradients of some parameters, of one dtype, on the CPU.

    Returns:
        A future of the bucket's buffer, which then has the mean of all ranks' gradients.

    Raises:
        InvalidArgument, ConfigError: ranks refuse their arguments (see HookState).
        PeerFailed, Timeout: the error has the ranks that have died or are late. They come out of loss.backward().
    """
    if not isinstance(state, HookState):
        raise InvalidArgument(f"{_CALL}: state is a {type(state).__name__}: must be a hpcomm.torch.HookState")
    return state._reduce(bucket)
