"""Users of a namespace: workers of other users than the hub's own share memory with it if the namespace lists them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mpi
import pytest
from served import SECONDS, TOKENS, VALUES, Served, join, numbered, said, trained
from sockets import listeners
from test_stranger import heard_by_another_user
from users import user

import hpcomm

TESTS = Path(__file__).parent
OWNER, LISTED, NOBODY, OTHER = 4101, 4102, 65534, 4103
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
pytestmark = by_root


class HubOfAnotherUser(Served):
    """A hub of another user. Namespace a lists users, the others do not."""

    def __init__(self, folder: Path, owner: int, also: int) -> None:
        self._owner, self._lists = owner, f'users = ["nobody", {LISTED}, {also}]'
        os.chown(folder, owner, -1)
        become = f"import sys; sys.path.append({str(TESTS)!r}); import users; users.become({owner})"
        super().__init__(folder, become, drain_seconds=0)

    def token(self, name: str, token: str) -> None:
        super().token(name, token)
        os.chown(self.folder / f"{name}.token", self._owner, -1)

    def configure(
        self,
        names: tuple[str, ...] = ("a", "b"),
        more: dict[str, Any] | None = None,
        own: dict[str, str] | None = None,
    ) -> None:
        super().configure(names, more, {"a": self._lists, **(own or {})})


@contextmanager
def started(owner: int = OWNER, also: int = LISTED) -> Iterator[Served]:
    """A hub of a user. also: one more user that it lists."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's folders are closed to other users
        served = HubOfAnotherUser(Path(folder), owner, also)
        try:
            yield served
        finally:
            code = served.end()
        assert code == 0


@pytest.fixture(scope="module")
def hub() -> Iterator[Served]:
    with started() as served:
        yield served


def train(handle: str, token: str, users: list[int], transport: str) -> list[Any]:
    """Whether a worker maps the memory of each rank, and a checksum of the parameters."""
    with user(users[int(os.environ["RANK"])]), join(handle, token, transport=transport) as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.Nesterov(lr=0.5))
        maps = [peer.maps or peer.rank == ctx.rank for peer in ex.context.peers]
        return [maps, "".join(array.tobytes().hex() for array in trained(ex, ctx.rank).values())]


def refused(handle: str, token: str, users: list[int], transport: str) -> list[str]:
    return said(lambda: train(handle, token, users, transport))


def workers(hub: Served, users: list[int], body: Any = train, transport: str = "shm,tcp", space: str = "a") -> Any:
    return run_as(users, body, hub.create(space), transport, space)


def run_as(users: list[int], body: Any, handle: str, transport: str, space: str = "a") -> Any:
    given = handle, TOKENS[space], users, transport
    return mpi.start(numbered(len(users)), body, *given, timeout=SECONDS).values


@pytest.mark.parametrize("listed", [LISTED, NOBODY])
def test_workers_of_a_listed_user_share_memory_with_the_hub(hub: Served, listed: int) -> None:
    shared = workers(hub, [listed] * 2)
    assert [maps for maps, _ in shared] == [[True] * 3] * 2
    own = workers(hub, [OWNER] * 2)
    assert own == shared


@pytest.mark.parametrize(("other", "space"), [(OTHER, "a"), (LISTED, "b"), (0, "a")])
def test_workers_of_other_users_use_tcp(hub: Served, other: int, space: str) -> None:
    apart = workers(hub, [other] * 2, space=space)
    assert [maps for maps, _ in apart] == [[True, True, False]] * 2
    assert apart[0][1] == workers(hub, [OWNER] * 2)[0][1]


def test_workers_of_two_users_use_tcp_between_them(hub: Served) -> None:
    both = workers(hub, [LISTED, NOBODY, OTHER])
    assert [maps for maps, _ in both] == [
        [True, False, False, True],
        [False, True, False, True],
        [False] * 2 + [True, False],
    ]
    assert len({values for _, values in both}) == 1


def test_all_workers_know_the_users_of_all_hubs(hub: Served) -> None:
    with started(OTHER) as second:
        handle = hpcomm.create_service([hub.where, second.where], "a", TOKENS["a"])
        found = run_as([LISTED] * 2, train, handle, "shm,tcp")
    assert [maps for maps, _ in found] == [[True] * 4] * 2


def test_a_user_that_may_not_share_memory_is_named(hub: Served) -> None:
    before = hub.counts("refused: another user")
    for kind, told in workers(hub, [OTHER] * 2, refused, "shm"):
        assert kind == "ConfigError"
        assert told.endswith(
            f"transport is 'shm', and user {OTHER} may share no memory with the hub: add {OTHER} to `users` of "
            "namespace 'a' in hub.toml, or allow tcp too"
        )
    assert hub.counts("refused: another user") > before
    for kind, told in workers(hub, [LISTED, NOBODY], refused, "shm"):
        assert kind == "ConfigError"
        assert "may share no memory with rank" in told
        assert told.endswith("run all workers as one user, or allow tcp too")


def meet(transport: str) -> list[str]:
    """The names of the transports to both ranks of a job, or its error."""
    world = mpi.world()
    assert world is not None

    def found() -> list[str]:
        with user(LISTED + world.rank), hpcomm.init(world, transport=transport, timeout=15) as ctx:
            return [peer.transport for peer in ctx.peers]

    try:
        return found()
    except hpcomm.NotSupported as error:
        return [str(error)]


def test_ranks_of_two_users_share_no_memory_without_a_hub() -> None:
    assert mpi.spawn(2, meet, "shm,tcp").values == [["self", "tcp"], ["tcp", "self"]]
    for (told,) in mpi.spawn(2, meet, "shm").values:
        assert f"rank 0 runs as user {LISTED} and rank 1 as user {LISTED + 1}: ranks of two users share memory" in told


def ask_the_hub(handle: str, token: str, users: list[int], transport: str) -> list[int]:
    """What each listener of the hub tells a user of the namespace, of whom it takes calls, about the job."""
    with user(users[0]), join(handle, token, transport=transport) as ctx:
        ex = hpcomm.parameter_hub(ctx, VALUES, servers="hub")
        os.setresuid(0, 0, 0)
        return [heard_by_another_user(name) for name in listeners([ex.context.peers[-1].pid])[1]]


def test_a_hub_tells_a_listed_user_nothing_about_other_jobs(hub: Served) -> None:
    (heard,) = workers(hub, [LISTED], ask_the_hub)  # by nobody, which is listed too
    assert heard == [0]


def test_a_reload_changes_the_users_of_later_jobs() -> None:
    with started() as hub:
        assert workers(hub, [OTHER])[0][0] == [True, False]
        hub.configure(own={"a": f"users = [{OTHER}]"})
        hub.reload("reload: 2 namespaces")
        assert workers(hub, [OTHER])[0][0] == [True, True]
        hub.configure(own={"a": 'users = ["no such user"]'})
        hub.reload("namespaces.a.users[0] is 'no such user': this host has no user of this name")
        assert workers(hub, [OTHER])[0][0] == [True, True]
