"""What an exchange refuses: before anything is sent, with the value and the fix, on every rank where all make it."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from flat import grouped

import hpcomm
from hpcomm import (
    ASYNC,
    BSP,
    SGD,
    SSP,
    Adam,
    Average,
    ConfigError,
    Consistency,
    EngineOptions,
    Exchange,
    Hierarchy,
    InvalidArgument,
    NotSupported,
    ParameterServer,
    Plan,
    PlanOptions,
)
from hpcomm.graphs import complete, hypercube, ring
from hpcomm.optim import Rule
from hpcomm.topology import Request, Tree

F32 = np.float32
Options = dict[str, Any]


def quorum_of(n: int) -> Consistency:
    return Consistency(quorum=n, late="drop")


def params(**changed: Any) -> Options:
    return {"fc": np.zeros((2, 3), F32), "bias": np.zeros(3, F32), **changed}


# ---- creation: every rank raises -------------------------------------------------------------------------------------

# What rank 1 asks for, and what every rank is told. The other ranks ask for Exchange(context, params()).
ONE_IS_WRONG: dict[str, tuple[Options, str]] = {
    "dtype": ({"params": params(bias=np.zeros(3))}, r"params\['bias'\] is float64: must be float32"),
    "byte order": ({"params": params(bias=np.zeros(3, ">f4"))}, r"params\['bias'\] is >f4: must be float32, native"),
    "empty key": ({"params": params(bias=np.zeros(0, F32))}, r"params\['bias'\] has shape \(0,\): a key has one"),
    "columns": ({"params": params(fc=np.zeros((3, 2), F32).T)}, r"params\['fc'\]: .* not C-contiguous"),
    "objects": ({"params": params(fc=object())}, r"params\['fc'\]: a object has neither the buffer protocol"),
    "name no text": ({"params": {3: np.zeros(3, F32)}}, r"params: 3 must be a str, the name of a key"),
    "no keys": ({"params": {}}, r"params is empty: must map names"),
    "params no mapping": ({"params": [np.zeros(3, F32)]}, r"params is a list: must map names"),
    "chunk size 0": ({"chunk_bytes": 0}, r"chunk is 0 bytes; must be a multiple of 64"),
    "chunk size odd": ({"chunk_bytes": 100}, r"100.*multiple of 64"),
    "chunk size a text": ({"chunk_bytes": "32K"}, r"chunk_bytes is '32K'"),
    "cores": ({"cores": 0}, r"cores is 0"),
    "depth": ({"depth": 0}, r"depth is 0; 1 to 32 are possible"),
    "codec": ({"codec": "int8"}, r"codec is 'int8': must be one of 'float32', 'float16', 'bfloat16'"),
    "codec_out": ({"codec_out": "int8"}, r"codec_out is 'int8': must be one of 'float32', 'float16', 'bfloat16'"),
    "codec of no key": (
        {"codec": {"fc": "float16", "fcc": "float16"}},
        r"codec has an entry for 'fcc', which is not a key: did you mean 'fc'\?",
    ),
    "codec_out of no key": (
        {"codec_out": {"other": "float16"}},
        r"codec_out has an entry for 'other', which is not a key: they are 'fc', 'bias'",
    ),
    "codec of no key, on a graph": (
        {"codec": {"": "float16"}, "topology": ring(3)},
        r"an entry for '', which is not a key",
    ),
    "codec of a key": ({"codec": {"bias": "int8"}}, r"codec of 'bias' is 'int8': must be one of 'float32', 'float16'"),
    "codec_out of a key on a graph": (
        {"codec_out": {"bias": "bfloat16"}, "topology": hpcomm.graphs.complete},
        r"codec_out is {'bias': 'bfloat16'}: on a graph parameters stay at their rank",
    ),
    "codec_out of a key and shared_params": (
        {"codec_out": {"bias": "float16"}, "shared_params": True},
        r"row 1 sends parameters as float16; with shared_params",
    ),
    "codec_out and shared_params": (
        {"codec_out": "float16", "shared_params": True},
        r"row 0 sends parameters as float16; with shared_params all workers read the owner's float32",
    ),
    "codec_out on a graph": (
        {"codec_out": "bfloat16", "topology": hpcomm.graphs.complete},
        r"codec_out is 'bfloat16': on a graph parameters stay at their rank",
    ),
    "reduce": ({"reduce": "max"}, r"reduce is 'max': must be one of 'mean', 'sum'"),
    "progress": ({"progress": "fast"}, r"progress is 'fast': must be one of 'auto', 'inline', 'thread'"),
    "rule a class": ({"rule": SGD}, r"rule is .*must be one of SGD, .*SGD\(\) makes one"),
    "rule a text": (
        {"rule": "sgd"},
        r"rule is 'sgd': must be one of SGD, Momentum, Nesterov, Adam, AdamW, Average, ",
    ),
    "consistency a text": ({"consistency": "BSP"}, r"consistency is 'BSP': must be a Consistency"),
    "consistency to come": (
        {"consistency": Consistency(staleness=3)},
        r"with servers it must be BSP, SSP\(s\) or ASYNC; give a graph",
    ),
    "consistency of graphs": (
        {"consistency": Consistency(staleness=None, whole=False)},
        r"with servers it must be BSP, SSP\(s\) or ASYNC; give a graph",
    ),
    "topology": (
        {"topology": "CS"},
        r"topology is 'CS': must be 'auto', 'flat', a ParameterServer, a Hierarchy, a Tree, a Graph",
    ),
    "hierarchy without a rank": ({"topology": Hierarchy([[0], [1]])}, "rank 2 is in none of hosts: each rank is on"),
    "hierarchy with an empty host": ({"topology": Hierarchy([[0, 1, 2], []])}, r"hosts\[1\] is empty"),
    "rack that splits a host": (
        {"topology": Hierarchy([[0, 1], [2]], [[0], [1, 2]])},
        r"hosts\[0\], ranks \(0, 1\), is split by racks\[0\] and racks\[1\]",
    ),
    "host without a leader": (
        {"topology": Hierarchy([[0, 1], [2]], leaders=[0, 1])},
        r"leaders is \(0, 1\): none of them is on hosts\[1\]",
    ),
    "leader of no host": ({"topology": Hierarchy([[0, 1, 2]], leaders=[3])}, "leaders is 3: must be 0 to 2"),
    "ring and ASYNC": (
        {"topology": Hierarchy([[0, 1], [2]], top="ring"), "consistency": ASYNC},
        "ASYNC and SSP\\(s\\) apply the update of each host by itself, and a ring folds all into one",
    ),
    "ring and a quorum": (
        {"topology": Hierarchy([[0, 1], [2]], top="ring"), "consistency": quorum_of(1)},
        "a quorum is one of the updates of hosts, and a ring folds all into one",
    ),
    "tree and a quorum": (
        {"topology": Tree(), "consistency": quorum_of(1), "rule": hpcomm.Average()},
        "a quorum is one of several workers' updates, and a Tree has those of one",
    ),
    "quorum of more than all hosts": (
        {"topology": Hierarchy([[0, 1], [2]]), "consistency": quorum_of(3)},
        "quorum is 3, but key .* gets 2 updates a step, one from each host or rack: give a quorum from 1 to 2",
    ),
    "quorum of hosts and shared_params": (
        {"topology": Hierarchy([[0, 1], [2]]), "consistency": quorum_of(1), "shared_params": True},
        "a quorum with servers or peers does not go with shared_params",
    ),
    "a topology of no key": (
        {"topology": {"fcc": Hierarchy([[0, 1], [2]])}},
        "topology has an entry for 'fcc', which is not a key",
    ),
    "a topology of a key": ({"topology": {"fc": "CS"}}, "topology of 'fc' is 'CS': must be 'auto', 'flat'"),
    "a consistency of no key": (
        {"consistency": {"fcc": ASYNC}},
        r"consistency has an entry for 'fcc', which is not a key: did you mean 'fc'\?",
    ),
    "a consistency of a key": ({"consistency": {"fc": 3}}, "consistency of 'fc' is 3: must be a Consistency"),
    "a ring of a key and SSP": (
        {"topology": {"fc": Hierarchy([[0, 1], [2]], top="ring")}, "consistency": SSP(2)},
        "ASYNC and SSP\\(s\\) apply the update of each host by itself, and a ring folds all into one",
    ),
    "tree and ASYNC": (
        {"topology": Tree(), "consistency": ASYNC, "rule": hpcomm.Average()},
        "ASYNC and SSP\\(s\\) apply the updates of several workers each by itself, and a Tree has those of one",
    ),
    "no graphs": (
        {"topology": ()},
        r"topology is \(\): must be 'auto', 'flat', a ParameterServer, a Hierarchy, a Tree, a Graph",
    ),
    "function without a graph": (
        {"topology": hypercube},
        r"topology: hypercube\(3\) cannot make a graph: n is 3: a hypercube",
    ),
    "function of none": ({"topology": lambda n: None}, r"topology: <lambda>\(3\) is None: must be a Graph, or several"),
    "graph too small": ({"topology": ring(2)}, r"must have 3 ranks, as the job has"),
    "graph and sum": ({"topology": ring(3), "reduce": "sum"}, r"reduce is 'sum': on a graph the weights say"),
    "graph and plan": (
        {"topology": ring(3), "plan": Plan.hub(params(), [0, 1, 2], [0], 3)},
        r"plan is a Plan, and topology Phases.*ring\(3\).* makes one of its own",
    ),
    "in_place and servers": (
        {"in_place": True, "rule": Average()},
        r"in_place needs a graph and rule average; here are servers and rule",
    ),
    "in_place and gradients": (
        {"in_place": True, "topology": ring(3)},
        r"in_place needs a graph and rule average; here are a graph and rule sgd",
    ),
    "in_place and depth": (
        {"in_place": True, "topology": ring(3), "rule": Average(), "depth": 32},
        r"depth is 32: must be 1 to 31",
    ),
    "in_place and staleness": (
        {"in_place": True, "topology": ring(3), "rule": Average(), "consistency": SSP(30)},
        r"staleness is 30; 0 to 29 are possible on a graph with in_place",
    ),
    "graph and shared_params": ({"topology": ring(3), "shared_params": True}, r"shared_params is for servers"),
    "graph and staleness": (
        {"topology": ring(3), "consistency": Consistency(staleness=3)},
        r"on a graph it must be BSP, NOTIFY_ACK, SSP\(s\), BARRIER or ASYNC",
    ),
    "staleness too large": (
        {"topology": ring(3), "consistency": SSP(31)},
        r"staleness is 31; 0 to 30 are possible on a graph",
    ),
    "server out of range": ({"topology": ParameterServer(servers=[5])}, r"rank 5.* 0 to 2"),
    "more interfaces than cores": (
        {"topology": ParameterServer(interfaces=3), "cores": 2},
        r"interfaces is 3; 0 \(one\) to 2 are possible",
    ),
    "timeout": ({"timeout": -1}, r"timeout is -1"),
    "plan": ({"plan": 5}, r"plan is 5: must be a Plan or PlanOptions"),
    "engine": ({"engine": "inline"}, r"engine is 'inline': must be EngineOptions"),
    "options of the plan": ({"plan": PlanOptions(codec="int8")}, r"codec is 'int8': must be one of 'float32'"),
    "options of the engine": ({"engine": EngineOptions(patience=0.5)}, r"patience is 0.5: must be a number, 1 or more"),
    "no weight": ({"engine": EngineOptions(weight=0)}, r"weight is 0: must be a number, more than 0"),
    "plan of other keys": (
        {"plan": ParameterServer().compile(Request({"fc": (2, 3)}, 3))},
        r"key 1 is None in the plan and \('bias', \(3,\)\) in params",
    ),
    "plan of other ranks": (
        {"plan": ParameterServer().compile(Request(params(), 2))},
        r"plan is for 2 ranks: the job has 3",
    ),
    "quorum on a graph": (
        {"topology": complete(3), "consistency": Consistency(quorum=1, whole=False)},
        r"quorum is 1 under BARRIER.*a quorum needs NOTIFY_ACK or SSP",
    ),
    "quorum and in_place": (
        {
            "topology": complete(3),
            "rule": Average(),
            "in_place": True,
            "consistency": Consistency(quorum=1, late="drop", waits_for="neighbours"),
        },
        r"quorum is 1 and in_place 1: a straggler",
    ),
    "quorum too large": (
        {"consistency": quorum_of(4)},
        r"quorum is 4, but key fc gets 3 updates a step, one from each worker: give a quorum from 1 to 3",
    ),
    "quorum and ASYNC": (
        {"consistency": Consistency(staleness=None, quorum=2)},
        r"ASYNC waits for no update, so it has no quorum: leave quorum out",
    ),
    "quorum and shared_params": ({"consistency": quorum_of(2), "shared_params": True}, r"go with shared_params"),
    "SSP with servers": ({"consistency": SSP(65)}, r"staleness is 65; 0 to 64 are possible with servers"),
    "SSP and a quorum": (
        {"consistency": Consistency(staleness=2, quorum=2, waits_for="neighbours")},
        r"a quorum with servers or peers does not go with consistency SSP",
    ),
    "SSP and shared_params": ({"consistency": SSP(2), "shared_params": True}, r"shared_params needs BSP: under SSP"),
    "SSP and in_place": (
        {"consistency": SSP(2), "in_place": True},
        r"in_place needs a graph and rule average; here are servers and rule",
    ),
    "SSP and Average": ({"consistency": SSP(2), "rule": Average()}, r"key fc has rule average.*give another rule"),
    "SSP and a plan of ASYNC": (
        {"consistency": SSP(2), "plan": Plan.hub(params(), [0, 1, 2], [0], 3, each=True)},
        r"SSP with servers needs rows of one stage that apply the updates of all workers",
    ),
    "shared under ASYNC": ({"consistency": ASYNC, "shared_params": True}, r"shared_params needs BSP"),
}

RANKS_DIFFER: dict[str, tuple[Options, str]] = {
    "order of keys": (
        {"params": dict(reversed(params().items()))},
        r"key 0 is bias of 3 elements on rank 1 and fc of 6 on rank 0: give the same keys in the same order",
    ),
    "shape": ({"params": params(bias=np.zeros(4, F32))}, r"key 1 is bias of 4 elements on rank 1 and bias of 3"),
    "number of keys": ({"params": params(more=np.zeros(4, F32))}, r"rank 1 has 3 keys and rank 0 has 2"),
    "a key's graph": ({"topology": {"fc": ring(3)}}, "rank 1 gives 2 configurations of keys and rank 0 gives 1"),
    "a key's consistency": (
        {"consistency": {"bias": ASYNC}},
        "rank 1 gives 2 configurations of keys and rank 0 gives 1",
    ),
    "rule": ({"rule": Adam(lr=0.01)}, r"rank 1 has rule adam with 2 slots, rank 0 sgd with 0"),
    "staleness": ({"consistency": SSP(3)}, r"rank 1 has consistency 3, .*; rank 0 has 0"),
    "hyper-parameter": ({"rule": SGD(lr=0.5)}, r"lr of rule sgd is 0.5 on rank 1 and 0.01 on rank 0.*give the same"),
    "depth": ({"depth": 2}, r"another plan than rank 0"),
    "codec": ({"codec": "float16"}, r"another plan than rank 0"),
    "codec_out": ({"codec_out": "float16"}, r"another plan than rank 0: give .* codec_out"),
    "codec of a key": ({"codec": {"bias": "float16"}}, r"another plan than rank 0: give .* wire"),
    "codec_out of a key": ({"codec_out": {"bias": "float16"}}, r"another plan than rank 0: give .* codec_out"),
    "placement": ({"topology": ParameterServer("CC")}, r"another plan than rank 0"),
    "affinity": (
        {"topology": ParameterServer(affinity="worker")},
        r"another plan than rank 0: give .* servers, cores, interfaces, affinity, chunk",
    ),
    "consistency": ({"consistency": ASYNC}, r"rank 1 has consistency 1"),
    "quorum": ({"consistency": quorum_of(2)}, r"rank 1 has quorum 2 and grace -1; rank 0 has 0 and -1"),
}


def refused_on_every_rank(options: Options, told: str, kinds: Any) -> None:
    raised: list[str] = []

    def body(context: hpcomm.Context) -> None:
        given: Options = {"params": params(), **(options if context.rank == 1 else {})}
        with pytest.raises(kinds, match=told) as error:
            Exchange(context, given.pop("params"), **grouped(given))
        raised.append(str(error.value))
        context.barrier()  # they still agree on what comes next
        with Exchange(context, params()) as ex:
            ex.step(params())

    run_threads(3, body, timeout=10)
    assert len(raised) == 3


@on_both
@pytest.mark.parametrize("case", ONE_IS_WRONG)
def test_wrong_argument_of_one_rank_raises_on_every_rank(case: str) -> None:
    options, told = ONE_IS_WRONG[case]
    refused_on_every_rank(options, told, (InvalidArgument, ConfigError, NotSupported))


@on_both
@pytest.mark.parametrize("case", RANKS_DIFFER)
def test_ranks_that_differ_are_all_told(case: str) -> None:
    options, told = RANKS_DIFFER[case]
    refused_on_every_rank(options, told, ConfigError)


@pytest.mark.parametrize(("name", "value"), [("placement", "ring"), ("affinity", "core"), ("interfaces", 0)])
def test_preset_tells_every_rank_too(name: str, value: Any) -> None:
    def body(context: hpcomm.Context) -> None:
        options: Options = {name: value} if context.rank == 1 else {}
        with pytest.raises(InvalidArgument, match=f"{name} is {value!r}"):
            hpcomm.parameter_hub(context, params(), **grouped(options))
        context.barrier()

    run_threads(2, body)


@pytest.mark.parametrize("transport", ["loop", "tcp"])
def test_shared_params_where_none_can_be_shared(transport: str) -> None:
    def body(context: hpcomm.Context) -> None:
        with pytest.raises(NotSupported, match="shared_params"):
            Exchange(context, params(), engine=EngineOptions(shared_params=True))

    run_threads(2, body, transport=transport)


def test_shared_params_need_the_hosts_of_the_job() -> None:
    def body(context: hpcomm.Context) -> None:
        told = r"row \d sends parameters to rank \d and not to rank \d, which reads the same copy"
        with pytest.raises(ConfigError, match=told):
            Exchange(context, params(), Hierarchy([[0, 1], [2, 3]]), engine=EngineOptions(shared_params=True))
        with Exchange(context, params(), Hierarchy([[0, 1, 2, 3]]), engine=EngineOptions(shared_params=True)) as ex:
            ex.step(params())

    run_threads(4, body, transport="shm")


def test_ctx_that_is_none() -> None:
    with pytest.raises(InvalidArgument, match=r"ctx is 5: must be a Context, see hpcomm\.init"):
        Exchange(5, params())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="placement"):
        hpcomm.parameter_hub(5, params(), placement="ring")  # type: ignore[arg-type]


@on_both
def test_rank_that_makes_none_is_waited_for() -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context) -> None:
        if context.rank == 0:
            with pytest.raises(hpcomm.Timeout) as raised:
                Exchange(context, params(), timeout=0.05)
            assert raised.value.waiting_for == (1,)
            gate.set()
        assert gate.wait(20)
        context.close()
        raise Left

    run_threads(2, body)


# ---- calls -----------------------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "unknown key": (lambda ex: ex.push("fd"), r"rank 1: 'fd' is not a key of this exchange: did you mean 'fc'\?"),
    "key no text": (lambda ex: ex.pull(["fc"]), r"\['fc'\] is not a key of this exchange: they are 'fc', 'bias'"),
    "gradient of none": (lambda ex: ex.gradient("bios"), r"did you mean 'bias'"),
    "dtype": (lambda ex: ex.push("fc", np.zeros((2, 3))), r"gradient of 'fc' is float64: must be float32"),
    "int": (lambda ex: ex.push_pull("fc", np.zeros((2, 3), "i4")), r"gradient of 'fc' is int32"),
    "byte order": (lambda ex: ex.push("fc", np.zeros((2, 3), ">f4")), r"gradient of 'fc' is >f4"),
    "shape": (lambda ex: ex.push("fc", np.zeros((3, 2), F32)), r"has shape \(3, 2\): must be \(2, 3\)"),
    "flat": (lambda ex: ex.push_pull_nb("fc", np.zeros(6, F32)), r"has shape \(6,\): must be \(2, 3\)"),
    "columns": (lambda ex: ex.push_nb("fc", np.zeros((3, 2), F32).T), r"gradient of 'fc': .* not C-contiguous"),
    "a list": (lambda ex: ex.push("bias", [1, 2, 3]), r"gradient of 'bias': a list has neither the buffer protocol"),
    "between elements": (
        lambda ex: ex.push("bias", np.frombuffer(bytearray(13), np.uint8)[1:].view(F32)),
        r"gradient of 'bias' is not aligned to 4 bytes",
    ),
    "step without a key": (lambda ex: ex.step({"fc": np.zeros((2, 3), F32)}), r"grads has no 'bias'"),
    "step with another key": (lambda ex: ex.step(params(more=0)), r"'more' is not a key"),
    "step with a wrong one": (lambda ex: ex.step(params(bias=np.zeros(2, F32))), r"gradient of 'bias' has shape"),
    "step of a list": (lambda ex: ex.step([1]), r"grads is a list"),
    "timeout": (lambda ex: ex.push_pull("fc", timeout=-1), r"timeout is -1"),
    "no time": (lambda ex: ex.pull("fc", timeout=float("nan")), r"timeout is nan"),
    "serve": (lambda ex: ex.serve(timeout=-2), r"timeout is -2"),
    "serve by a worker": (
        lambda ex: ex.serve(),
        r"rank 1 is a worker, which serves the others in its own calls and in close",
    ),
}


@on_both
@pytest.mark.parametrize("case", CALLS)
def test_refused_call_sends_nothing(case: str) -> None:
    call, told = CALLS[case]

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, params(), rule=SGD(lr=1))
        if context.rank == 1:
            with pytest.raises(InvalidArgument, match=told):
                call(ex)
        assert ex.stats().pushes == 0
        ex.step({name: np.ones_like(value) for name, value in params().items()})
        assert all((value == -1).all() for value in ex.params.values())

    run_threads(2, body)


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_check_finite_names_key_and_rank(wire: str, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if bad < 0:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # bfloat16 as bits

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, params(), rule=SGD(lr=1), engine=EngineOptions(check_finite=True), codec=wire)
        if context.rank == 1:
            wrong = params(bias=np.array([0, bad, 0], F32))
            with pytest.raises(InvalidArgument, match=r"bias.*rank 1"):
                ex.push("bias", wrong["bias"])
            with pytest.raises(InvalidArgument, match=r"rank 1: the gradient of 'bias' is .* at element 1"):
                ex.step(wrong)
            slot = ex.gradient("bias")
            slot[...] = 0
            slot[2] = 0x7F80 if slot.dtype == np.uint16 else np.inf
            with pytest.raises(InvalidArgument, match=r"bias.*rank 1"):
                ex.push_pull("bias", slot)
            ex.gradient("fc")[...] = 0
            with pytest.raises(InvalidArgument, match=r"rank 1: the gradient of 'bias' is .* at element 2"):
                ex.step()
        assert ex.stats().pushes == 0
        ex.step({name: np.ones_like(value) for name, value in params().items()})
        assert all((value == -1).all() for value in ex.params.values())

    run_threads(2, body)


@pytest.mark.parametrize(
    ("wire", "bad", "told"),
    [
        ("float16", 65520.0, "65520 at element 1, too large for float16"),
        ("float16", -1e6, "-1e\\+06 at element 1, too large for float16"),
        ("float16", np.nan, "nan at element 1, too large|nan at element 1, not finite"),
        ("bfloat16", float(np.finfo(F32).max), "e\\+38 at element 1, too large for bfloat16"),
    ],
)
def test_step_refuses_what_the_wire_cannot_hold(wire: str, bad: float, told: str) -> None:
    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, params(), rule=SGD(lr=0), engine=EngineOptions(check_finite=True), codec=wire)
        if context.rank == 1:
            with pytest.raises(InvalidArgument, match=told):
                ex.step(params(bias=np.array([0, bad, 0], F32)))
            assert ex.stats().pushes == 0
        largest = 65519.0 if wire == "float16" else 3.39e38
        ex.step(params(bias=np.array([0, largest, -largest], F32)))
        assert ex.stats().pushes == 2

    run_threads(2, body)


def test_bfloat16_bits_are_told_as_the_number_they_are(alone: hpcomm.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    ex = Exchange(alone, params(), engine=EngineOptions(check_finite=True), codec="bfloat16")
    for bits, told in ((0x7F80, "inf"), (0xFF80, "-inf"), (0x7FC0, "nan")):
        ex.gradient("fc")[...] = 0
        ex.gradient("bias")[...] = [0, 0, bits]
        with pytest.raises(InvalidArgument, match=rf"gradient of 'bias' is {told} at element 2, not finite"):
            ex.step()


@on_both
@pytest.mark.parametrize("arrays", [False, True], ids=["in place", "arrays"])
def test_step_with_a_key_under_way_sends_nothing(arrays: bool) -> None:
    gate = threading.Event()

    def body(context: hpcomm.Context) -> None:
        ex = Exchange(context, params(), rule=SGD(lr=1), reduce="sum")
        ones = {name: np.ones_like(value) for name, value in params().items()}
        if context.rank == 1:
            assert gate.wait(20)
        handle = ex.push_nb("bias", ones["bias"])
        if context.rank == 0:
            ex.gradient("fc")[...] = 1
            with pytest.raises(InvalidArgument, match=r"rank 0: step: key 'bias' is under way: wait for its handle"):
                ex.step(ones if arrays else None)
            assert ex.stats().pushes == 1
            gate.set()
        handle.wait()
        ex.step(ones)
        assert set(ex.params["bias"]) == {-4}
        assert set(ex.params["fc"].flat) == {-2}

    run_threads(2, body)


def test_step_looks_at_an_array_that_was_resized_since(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, params(), rule=SGD(lr=1))
    grads = {name: np.ones_like(value) for name, value in params().items()}
    ex.step(grads)
    grads["bias"].resize(4, refcheck=False)
    with pytest.raises(InvalidArgument, match=r"gradient of 'bias' has shape \(4,\)"):
        ex.step(grads)
    assert ex.stats().pushes == 2


def test_refused_calls_leave_the_gradients_where_they_are(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, params(), rule=SGD(lr=1), codec="float16", depth=2, engine=EngineOptions(check_finite=True))
    mine = {name: ex.gradient(name) for name in params()}
    for array in mine.values():
        array[...] = 1
    mine["bias"][1] = np.inf
    with pytest.raises(InvalidArgument, match="not finite"):
        ex.step(mine)
    with pytest.raises(InvalidArgument, match="bias"):
        ex.push_pull("bias", mine["bias"])
    mine["bias"][1] = 1
    assert list(ex.push_pull("bias", mine["bias"])) == [-1, -1, -1]  # a foreign array would have to be float32
    assert set(ex.push_pull("fc", mine["fc"]).flat) == {-1}


def test_closed_exchange_says_so(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, params(), rule=SGD(lr=1))
    gradient = ex.gradient("fc")
    handle = ex.push_pull_nb("bias", np.ones(3, F32))
    ex.close()
    assert "closed" in repr(ex)
    state: Options = {}
    calls: list[Callable[[], Any]] = [
        lambda: ex.push("fc"),
        lambda: ex.push("fc", gradient),
        lambda: ex.pull("fc"),
        lambda: ex.push_pull_nb("fc"),
        lambda: ex.gradient("fc"),
        ex.step,
        lambda: ex.set(lr=0.5),
        ex.state_dict,
        lambda: ex.load_state_dict(state),
        ex.progress,
        ex.serve,
        ex.stats,
        handle.wait,
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="closed"):
            call()
    ex.close()
    assert list(ex.params["bias"]) == [-1, -1, -1]  # what was under way was waited for


def test_exchange_of_a_closed_context(alone: hpcomm.Context) -> None:
    ex = Exchange(alone, params())
    alone.close()
    with pytest.raises(InvalidArgument, match="closed"):
        ex.push("fc")
    ex.close()
    with pytest.raises(InvalidArgument, match="closed"):
        Exchange(alone, params())


def test_same_rules_by_hand_are_the_same() -> None:
    assert SGD() == SGD(lr=0.01)
    assert BSP != ASYNC
    assert isinstance(ParameterServer().compile(Request(params(), 2)), Plan)
    assert Rule(8, name="a") != Rule(8, name="b")
