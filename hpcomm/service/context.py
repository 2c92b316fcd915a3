"""The two contexts of a worker whose job uses a hub.

The first one, a ServiceContext, is that of the workers alone: barriers, collectives and windows are theirs, and its
size is the number of workers. The second one also has the hubs as its last ranks; only exchanges use it. Both meet
through the hub's port, and both have a secret that is made of the token and of the job's nonce.
"""

from typing import Any, NoReturn

from .. import _core, launch
from .._core import NULL
from ..context import Context
from ..errors import NotSupported
from .ranks import Ranks, WorkerMeeting


class _MeetsAtHub(Context):
    """A context whose ranks meet at a hub, which has compared their versions."""

    __slots__ = ()

    _meet = staticmethod(launch.meet_at_once)

    def _connect(self, group: launch.Group) -> None:
        assert isinstance(group, Ranks)
        for rank, ip, port in group.leads():
            _core.context_lead(self._handle, rank, ip, port)
        with group.watched(super().abort):
            super()._connect(group)


class HubSide(_MeetsAtHub):
    """The context of the workers and the hubs, which exchanges use. A hub takes part in nothing else, so collective
    methods that a program calls are refused."""

    __slots__ = ("made", "meeting")

    def _refuse(self, op: str) -> NoReturn:
        raise NotSupported(
            f"rank {self.rank}: {op}: hubs take part in exchanges alone: call {op} of the workers' context, which "
            "connect_service returned"
        )

    def window(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("window")

    def receive_queue(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("receive_queue")

    def lane(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("lane")

    def barrier(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("barrier")

    def revoke(self) -> NoReturn:
        self._refuse("revoke")

    def shrink(self, *args: Any, **more: Any) -> NoReturn:
        self._refuse("shrink")

    def _tell_refusal(self, why: str) -> None:
        if self.rank == 0:  # the hubs take part in the refusal, as in the creation
            self.meeting.tell(b"R", why.encode("utf-8", "replace"))

    def __init__(self, meeting: WorkerMeeting, engine: Any) -> None:
        self.meeting, self.made = meeting, 0  # exchanges so far
        super().__init__(Ranks(meeting, b"s"), meeting.config, engine, meeting.secret, meeting.users)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.meeting.bye()
            self.meeting.close()

    def abort(self, why: str) -> None:
        super().abort(why)
        self.meeting.close()


class ServiceContext(_MeetsAtHub):
    """A worker's membership in a job whose parameters a hub serves. connect_service makes it.

    It is a Context of the workers: `size` counts them, and hubs take no part in barriers, windows and collectives.
    parameter_hub(ctx, params, servers="hub") makes an exchange at the hub. Other exchanges, among the workers alone,
    are made as in any context. Closing it closes the exchanges at the hub, and tells the hub that this worker is done.

    The context of an exchange at the hub (Exchange.context) has the hubs as its last ranks. Errors of such an exchange
    give these ranks: in a job of four workers, rank 4 is the first hub.

    Attributes:
        handle: the job's handle.
    """

    __slots__ = ("_served", "handle")

    _served: HubSide | None

    def __init__(self, meeting: WorkerMeeting, engine: Any = NULL) -> None:
        self.handle, self._served = str(meeting.handle), None
        try:
            super().__init__(Ranks(meeting, b"w"), meeting.config, engine, meeting.secret)
            meeting.learn_users(
                lambda data: _core.allgather(self._handle, data, self.size, meeting.config.init_seconds)
            )
            self._served = HubSide(meeting, engine)
        except BaseException as error:
            meeting.close()
            if hasattr(self, "_handle"):
                super().abort(str(error))
            raise
        title = f"{meeting.handle.namespace}/{meeting.handle.job}"
        self.set_title(f"{title}, workers")
        self._served.set_title(title)

    def __enter__(self) -> "ServiceContext":
        return self

    @property
    def notices(self) -> tuple[str, ...]:
        """The words of the hub to this job so far, in sentences, e.g. that it drains and ends the job in 60 s."""
        return () if self._served is None else self._served.meeting.notices()

    def close(self) -> None:
        try:
            if self._served is not None:
                self._served.close()
        finally:
            super().close()

    def abort(self, why: str) -> None:
        if self._served is not None:
            self._served.abort(why)
        super().abort(why)
