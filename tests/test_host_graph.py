"""Graphs of hosts: ranks of a host average first, and one model goes over each edge between hosts."""

from typing import Any

import mpi
import numpy as np
import pytest
from flat import grouped

import hpcomm
from hpcomm import InvalidArgument
from hpcomm.graphs import Graph, complete, ring, root_expander
from hpcomm.topology import HostGraph, Request

STEPS = 6
COUNTS = {"a": 3000, "b": 17}
HOSTS = {
    "by host": ((0, 1), (2, 3), (4, 5)),
    "round robin": ((0, 3), (1, 4), (2, 5)),
    "uneven": ((0, 1, 2), (3,), (4, 5)),
    "one": ((0, 1, 2, 3, 4, 5),),
    "alone": ((0,), (1,), (2,), (3,), (4,), (5,)),
}
GRAPHS: dict[str, Any] = {
    "ring": ring,
    "expander": root_expander,
    "one way": lambda n: Graph(n, range(n - 1), range(1, n)),
}


def model(rank: int, step: int, n: int) -> Any:
    return np.random.default_rng([rank, step, n]).integers(-64, 64, n).astype(np.float32)


def expected(topology: HostGraph, step: int, n: int, size: int) -> list[Any]:
    """By host, in float64."""
    graph, hosts = topology.among_hosts(), topology.hosts or ()
    means = [np.mean([model(rank, step, n).astype(np.float64) for rank in host], 0) for host in hosts]
    return [sum(weight * means[j] for j, weight in graph.in_edges(i)) for i in range(len(hosts))]


def in_two_calls(ex: hpcomm.Exchange, key: str, update: Any, right: Any) -> Any:
    """The parameters after an apply; NaN where the mean that is kept is not right."""
    ex.split.fold(key, update + 1)
    ex.split.skip(key)
    ex.split.fold(key, update)
    keeps = np.isclose(ex.split.squares(key), right @ right) and np.allclose(
        ex.split.gather(key), right, rtol=1e-6, atol=1e-4
    )
    return ex.split.apply(key) * (1 if keeps else np.nan)


def averages(options: dict[str, Any]) -> dict[str, str]:
    told = {}
    with hpcomm.init(mpi.world(), timeout=30) as ctx:
        for where, hosts in HOSTS.items():
            for name, graph in GRAPHS.items():
                topology = HostGraph(graph, hosts)
                own = next(i for i, host in enumerate(hosts) if ctx.rank in host)
                start = {key: np.zeros(n, np.float32) for key, n in COUNTS.items()}
                told[f"{where}, {name}"] = ""
                with hpcomm.Exchange(
                    ctx, start, topology, hpcomm.NOTIFY_ACK, hpcomm.Average(), **grouped(options)
                ) as ex:
                    for step in range(STEPS):
                        for key, n in COUNTS.items():
                            update, right = model(ctx.rank, step, n), expected(topology, step, n, ctx.size)[own]
                            split = options.get("split")
                            got = in_two_calls(ex, key, update, right) if split else ex.push_pull(key, update)
                            if not np.allclose(got, right, rtol=1e-6, atol=1e-4):
                                told[f"{where}, {name}"] += (
                                    f"rank {ctx.rank}, step {step}, {key}: {got[:3]} {right[:3]}; "
                                )
    return told


@pytest.mark.some(1)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("split", [False, True])
def test_hosts_average_first(transport: str, split: bool) -> None:
    options = {"chunk_bytes": 1024, "split": split}
    job = mpi.spawn(6, averages, options, timeout=120, env={"HPCOMM_TRANSPORT": transport})
    assert [told for rank in job.values for told in rank.values() if told] == []


def bytes_by_link(topology: HostGraph, size: int) -> dict[tuple[int, int], int]:
    """Bytes that go from a host to another in a step, by the plan."""
    host_of = {rank: i for i, host in enumerate(topology.hosts or ()) for rank in host}
    found: dict[tuple[int, int], int] = {}
    for row in topology.compile(Request({"a": 1 << 16}, size, chunk_bytes=1024)).rows:
        for edge in row.in_edges:
            link = host_of[edge.rank], host_of[row.owner]
            if edge.weight and link[0] != link[1]:
                found[link] = found.get(link, 0) + 4 * row.count
    return found


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_one_model_goes_over_each_edge(hosts: tuple[tuple[int, ...], ...]) -> None:
    topology = HostGraph(root_expander, hosts)
    graph = topology.among_hosts()
    links = {(j, i) for i in range(len(hosts)) for j in graph.in_peers(i) if j != i}
    assert bytes_by_link(topology, 6) == dict.fromkeys(links, 4 << 16)


def test_what_cannot_be_is_refused() -> None:
    start = {"a": np.zeros(64, np.float32)}
    with hpcomm.init() as ctx:
        for topology, options, told in (
            (HostGraph(complete(2)), {}, "it must be one Graph of 1 nodes"),
            (HostGraph(), {"consistency": hpcomm.ASYNC}, "on a HostGraph it must be NOTIFY_ACK or BSP"),
            (
                HostGraph(),
                {"plan": hpcomm.Plan.hub(start, [0], [0], ctx.size)},
                "plan is a Plan, and topology HostGraph.* makes one of its own",
            ),
            (HostGraph(), {"in_place": True}, "in_place needs a graph"),
            (HostGraph(), {"rule": hpcomm.SGD(0.1)}, "every rule must be Average"),
            (HostGraph(), {"codec_out": "float16"}, "leave both out"),
        ):
            with pytest.raises((InvalidArgument, hpcomm.ConfigError), match=told):
                hpcomm.stochastic_reduce(ctx, start, topology=topology, **grouped(options))
        with hpcomm.stochastic_reduce(ctx, start, topology=HostGraph()) as ex:
            assert np.array_equal(ex.push_pull("a", np.ones(64, np.float32)), np.ones(64, np.float32))
        for other in (HostGraph(), hpcomm.Tree(), {"a": hpcomm.Tree()}):
            with pytest.raises(InvalidArgument, match="must be 'auto', 'flat', a Hierarchy"):
                hpcomm.parameter_hub(ctx, start, topology=other)
    with pytest.raises(InvalidArgument, match=r"hosts\[1\] is empty"):
        HostGraph(complete, ((0,), ()))
    with pytest.raises(InvalidArgument, match="each of the 3 ranks must be on one"):
        HostGraph(complete, ((0, 1), (1, 2))).compile(Request({"a": 5}, 3))
