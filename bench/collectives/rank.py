"""A rank of the benchmark of collectives: it does what groups.py orders, and sleeps meanwhile.

A rank reads its orders from a socket file, where it blocks: while the ranks of another library are measured, it needs
no core. An order is a turn: untimed calls, timed calls, and one more call with fresh data whose answer is checked,
because a collective that works in place spoils its own input.
"""

import sys
import time
import traceback
from multiprocessing.connection import Client

from bench.collectives.data import Case, fill, wrong
from bench.collectives.libraries import MPICH, OPENMPI, Job, Lacking, Library, Place, make
from bench.collectives.orders import Answer, Order, Ready
from bench.common.wire import sent

WARM = 2  # untimed calls of a turn


class Rank:
    def __init__(self, place: Place, names: list[str]) -> None:
        self.place, self.libraries, self.lacking = place, dict[str, Library](), dict[str, str]()
        self.jobs: dict[str, tuple[Case, Job]] = {}
        for name in names:
            try:
                self.libraries[name] = make(name, place)
            except Lacking as reason:
                self.lacking[name] = str(reason)

    def job(self, name: str, case: Case) -> Job:
        """Returns the job of a case. A library has one job at a time."""
        held = self.jobs.get(name)
        if held is None or held[0] != case:
            self.jobs.pop(name, None)  # frees the arrays before new ones are made
            held = self.jobs[name] = case, self.libraries[name].prepare(case)
        return held[1]

    def turn(self, order: Order) -> Answer:
        library, job = self.libraries[order.library], self.job(order.library, order.case)
        case, rank, run = order.case, self.place.rank, job.run
        fill(case, rank, order.seed, job.send, job.recv)
        library.barrier()
        for _ in range(WARM):
            run()
        library.barrier()
        before = sent() if self.place.apart else 0
        start = time.perf_counter()
        for _ in range(order.calls):
            run()
        seconds = (time.perf_counter() - start) / (order.calls * case.trips)
        library.barrier()
        sent_bytes = (sent() - before) / order.calls if self.place.apart else 0.0
        fill(case, rank, order.seed, job.send, job.recv)
        library.barrier()
        run()
        library.barrier()
        if order.plant and rank == 0:
            job.recv[0] += 1
        return Answer(seconds, wrong(case, rank, order.seed, job.recv), sent_bytes)

    def answer(self, order: Order) -> Answer:
        try:
            return self.turn(order)
        except Lacking as reason:
            return Answer(lacking=str(reason))
        except Exception:
            return Answer(failed=traceback.format_exc(limit=-1))

    def close(self) -> None:
        self.jobs.clear()
        for library in self.libraries.values():
            library.close()


def main() -> None:
    address, folder, timeout, interface, ranks, rank, *names = sys.argv[1:]
    number = int(rank)
    if names[0] in (OPENMPI, MPICH):
        from mpi4py import MPI  # noqa: PLC0415 - ranks of other libraries do without

        if not MPI.Is_initialized():
            MPI.Init()
        number = MPI.COMM_WORLD.rank
    with Client(address, "AF_UNIX") as link:
        served = Rank(Place(number, int(ranks), folder, float(timeout), interface), names)
        link.send(Ready(number, {name: each.version for name, each in served.libraries.items()}, served.lacking))
        while (order := link.recv()) is not None:
            link.send(served.answer(order))
        served.close()


if __name__ == "__main__":
    main()
