"""An out-of-band exchange of its own for ranks that are to die: one abstract Unix socket, no file, no launcher.

The server gathers what every rank gives and returns it to all. It knows who has hung up and who is late, so that a rank
that dies before hpcomm's own channel is up is named as well.
"""

import threading
import time
from multiprocessing.connection import Client, Connection, Listener, wait
from types import TracebackType
from typing import Any

import hpcomm


class World:
    """A rank's end: a communicator for hpcomm.init."""

    def __init__(self, address: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._server: Connection = Client("\0" + address, "AF_UNIX")
        self._server.send(rank)

    def _ask(self, what: str, data: bytes = b"") -> Any:
        self._server.send((what, data))
        answer, value = self._server.recv()
        if answer == "gone":
            raise hpcomm.PeerFailed(f"init: ranks {value} hung up", ranks=value, op="init")
        if answer == "late":
            raise hpcomm.Timeout(f"init: nothing came from ranks {value}", op="init", waiting_for=value)
        return value

    def meet(self) -> None:
        """Returns when every rank has started, however long that takes."""
        self._ask("meet")

    def allgather(self, data: bytes) -> list[bytes]:
        return list(self._ask("give", data))

    def finish(self) -> None:
        """Returns when every rank but the victim is here or gone: nobody's end is to be taken for the victim's."""
        self._ask("finish")


class Server:
    """Serves size ranks until all have hung up. timeout is for a round of allgather; nobody awaits victim."""

    def __init__(self, address: str, size: int, timeout: float, victim: int) -> None:
        self._size, self._timeout, self._victim = size, timeout, victim
        self._listener = Listener("\0" + address, "AF_UNIX", backlog=size)
        self._ranks: dict[int, Connection] = {}
        self._gone: set[int] = set()
        self._asked: dict[int, tuple[str, bytes]] = {}
        self._since = 0.0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        for _ in range(self._size):
            connection = self._listener.accept()
            self._ranks[connection.recv()] = connection
        while len(self._gone) < self._size:
            heard = wait([self._ranks[rank] for rank in self._ranks if rank not in self._gone], 0.05)
            for rank in [rank for rank in self._ranks if self._ranks[rank] in heard]:
                self._hear(rank)
            self._answer()

    def _hear(self, rank: int) -> None:
        try:
            self._asked[rank] = self._ranks[rank].recv()
        except (EOFError, ConnectionError):
            self._gone.add(rank)
            self._asked.pop(rank, None)
        if len(self._asked) == 1:
            self._since = time.monotonic()

    def _answer(self) -> None:
        everybody = set(range(self._size))
        finished = {rank for rank, (what, _) in self._asked.items() if what == "finish"}
        giving = set(self._asked) - finished
        if finished and finished >= everybody - self._gone - {self._victim}:
            self._tell(finished, ("all", None))
        if giving == everybody:
            self._tell(giving, ("all", [self._asked[rank][1] for rank in range(self._size)]))
        elif giving and self._gone:
            self._tell(giving, ("gone", tuple(sorted(self._gone))))
        elif any(self._asked[rank][0] == "give" for rank in giving) and time.monotonic() > self._since + self._timeout:
            self._tell(giving, ("late", tuple(sorted(everybody - giving))))

    def _tell(self, ranks: set[int], answer: tuple[str, Any]) -> None:
        for rank in ranks:
            del self._asked[rank]
            try:
                self._ranks[rank].send(answer)
            except ConnectionError:
                self._gone.add(rank)
