"""What ranks have sent, by edge, stage and wire."""

from typing import Any

import numpy as np
import pytest
from conftest import on_both, run_threads
from flat import grouped

import hpcomm
from hpcomm import ASYNC, BSP, SSP, Consistency, Exchange, Hierarchy, ParameterServer
from hpcomm.graphs import ring
from hpcomm.stats import ExchangeStats, Traffic

F32 = np.float32
COUNT, STEPS = 6 * 256, 3
BYTES = 4 * COUNT * STEPS  # of all updates of one rank


def stats_of(ctx: hpcomm.Context, topology: Any, **options: Any) -> ExchangeStats:
    """After some steps, when nothing of any rank is under way any more."""
    params = {"w": np.zeros(COUNT, F32)}
    with Exchange(ctx, params, topology, progress="inline", chunk_bytes=1024, **grouped(options)) as ex:
        for _ in range(STEPS):
            ex.push_pull("w", np.ones(COUNT, F32))
        ctx.barrier()
        if options.get("consistency") == SSP(2):
            ex.pull("w")  # asks the owners, which have all updates by then
            ctx.barrier()
        return ex.stats()


def by_stage(stats: ExchangeStats, rank: int) -> dict[str, int]:
    return {entry.stage: entry.bytes for entry in stats.traffic if entry.rank == rank}


@on_both
def test_a_hub_sends_updates_and_parameters() -> None:
    def body(ctx: hpcomm.Context) -> ExchangeStats:
        return stats_of(ctx, ParameterServer("CS", servers=[1]), codec="float16")

    stats = run_threads(3, body)
    wire = stats[0].traffic[0].wire
    assert stats[0].traffic == (Traffic(1, "push", wire, BYTES // 2),)
    assert stats[1].traffic == tuple(Traffic(rank, "parameters", wire, BYTES) for rank in (0, 2))
    assert stats[2].traffic == (Traffic(1, "push", wire, BYTES // 2),)
    assert stats[1].sent_by_stage == {"parameters": 2 * BYTES}
    assert stats[1].sent_by_wire == {wire: 2 * BYTES}
    assert (stats[0].bytes_sent, stats[1].bytes_sent) == (BYTES // 2, 0)


def test_the_wire_is_the_one_that_connects_the_two() -> None:
    def body(ctx: hpcomm.Context) -> None:
        stats = stats_of(ctx, "flat")
        assert {(entry.rank, entry.wire) for entry in stats.traffic} == {
            (rank, ctx.peers[rank].transport) for rank in range(ctx.size) if rank != ctx.rank
        }
        assert sum(stats.sent_by_wire.values()) == sum(stats.sent_by_stage.values()) > stats.bytes_sent > 0

    run_threads(3, body)


@on_both
def test_a_host_sends_one_update_and_gets_one_copy_of_the_parameters() -> None:
    """Ranks 0 and 2 lead their hosts; the chunks of each are a half of all."""

    def body(ctx: hpcomm.Context) -> ExchangeStats:
        return stats_of(ctx, Hierarchy([[0, 1], [2, 3]], leaders=[0, 2]))

    stats = run_threads(4, body)
    for lead, member, other in ((0, 1, 2), (2, 3, 0)):
        assert by_stage(stats[lead], other) == {"forward": BYTES // 2, "relay": BYTES // 2}
        assert by_stage(stats[lead], member) == {"parameters": BYTES}
        assert stats[member].sent_by_stage == by_stage(stats[member], lead) == {"push": BYTES}


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "hub": ("flat", {}),
    "one server": (ParameterServer("CS", servers=[2]), {"depth": 2}),
    "hosts": (Hierarchy([[0, 1], [2, 3]]), {"codec": "bfloat16"}),
    "ring of hosts": (Hierarchy([[0, 1], [2], [3]], top="ring"), {"codec_out": "float16"}),
    "hosts apart": (Hierarchy([[0, 1], [2, 3]]), {"consistency": ASYNC}),
    "hosts within bounds": (Hierarchy([[0, 1], [2, 3]]), {"consistency": SSP(2)}),
    "receivers": (Hierarchy([[0, 1], [2], [3]], top="ring", apply_at="receivers"), {"codec": "float16"}),
    "async": ("flat", {"consistency": ASYNC}),
    "quorum": ("flat", {"consistency": Consistency(quorum=4, late="drop")}),
    "ssp": ("flat", {"consistency": SSP(2)}),
    "graph": (ring, {"consistency": hpcomm.NOTIFY_ACK, "rule": hpcomm.Average()}),
    "graph that meets": (ring, {"consistency": BSP, "rule": hpcomm.Average()}),
}


@on_both
@pytest.mark.parametrize("case", CASES)
def test_what_one_rank_sends_to_rows_of_another_is_what_that_one_gets(case: str) -> None:
    topology, options = CASES[case]

    def body(ctx: hpcomm.Context) -> ExchangeStats:
        return stats_of(ctx, topology, **options)

    every = run_threads(4, body)
    for a, sender in enumerate(every):
        assert by_stage(sender, a) == {}
        for b, receiver in enumerate(every):
            sent = by_stage(sender, b)
            sent.pop("parameters", None)
            assert sender.peers[b].bytes_sent == sum(sent.values()) == receiver.peers[a].bytes_received
        assert sender.bytes_sent == sum(peer.bytes_sent for peer in sender.peers)
    assert sum(stats.bytes_sent for stats in every) > 0


@on_both
def test_what_a_loaded_state_sends_counts() -> None:
    def body(ctx: hpcomm.Context) -> ExchangeStats:
        two_hosts = Hierarchy([[0, 1], [2]], leaders=[0, 2])
        with Exchange(ctx, {"w": np.zeros(COUNT, F32)}, two_hosts, progress="inline") as ex:
            assert ex.stats().traffic == ()  # creating it counts for nothing
            ex.load_state_dict(ex.state_dict())
            ctx.barrier()
            return ex.stats()

    stats = run_threads(3, body)
    assert stats[1].traffic == ()
    for lead, other in ((0, 2), (2, 0)):
        assert set(by_stage(stats[lead], other)) <= {"relay", "parameters"}
    assert sum(s.sent_by_stage.get("relay", 0) + s.sent_by_stage.get("parameters", 0) for s in stats) == 2 * 4 * COUNT
