"""The values that a tenant and its hub exchange: descriptions, handles, configurations and arguments."""

import math
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from served import CASES, VALUES

import hpcomm
from hpcomm import _core, launch
from hpcomm.config import Config
from hpcomm.plan import Plan
from hpcomm.service.books import Holding
from hpcomm.service.config import read_config
from hpcomm.service.described import Described
from hpcomm.service.tenant import Tenant, Terms, _Asked
from hpcomm.topology import Request


class MessageWritten(Exception):
    """The description of an exchange, in place of the exchange."""


class Told(hpcomm.Exchange):
    """An exchange that ends when it is described."""

    def _announce(self, plans: list[Plan], configs: list[Any]) -> None:
        raise MessageWritten(_core.description_write([self.arguments_of(plan) for plan in plans], configs))

    def arguments_of(self, plan: Plan) -> Any:
        return plan.arguments


class ToldOfRacks(Told):
    """The same with the arguments of a job of four workers, in two racks that have a hub each."""

    def arguments_of(self, plan: Plan) -> Any:
        hosts, racks = [[0, 1], [2], [3], [4], [5]], [[0, 1, 4], [2, 3, 5]]
        topology = hpcomm.Hierarchy(hosts, racks, servers=[4, 5])
        return topology.compile(Request(plan.keys, 6, chunk_bytes=16384)).arguments


def a_message(values: dict[str, Any] | None = None, told_by: type[Told] = Told, **given: Any) -> bytes:
    """The message that describes an exchange of a world of one."""
    case = {"rule": hpcomm.SGD(lr=0.5), "plan": hpcomm.PlanOptions(cores=1), **given}
    topology = hpcomm.ParameterServer("CC", apply_at=case.pop("apply_at", "owners"))
    with hpcomm.init() as ctx, pytest.raises(MessageWritten) as told:
        told_by(ctx, {"w": VALUES["w"]} if values is None else values, topology, **case)
    return bytes(told.value.args[0])


def a_description(**given: Any) -> Described:
    return Described(a_message(**given), 1)


RICH: dict[str, Any] = {
    "values": VALUES,
    "rule": {"w": hpcomm.ProxSGD(prox=hpcomm.prox.ElasticNet(0.5, 0.25)), "b": hpcomm.Adam(), "big": hpcomm.SGD()},
    "plan": hpcomm.PlanOptions(
        codec={"b": hpcomm.codec.Threshold(0.5, up=1.0, at_least=9e9, kernel="c")}, cores=2, depth=3
    ),
    "consistency": {"w": hpcomm.SSP(1), "b": hpcomm.Consistency(quorum=1, grace=math.inf)},
}


def test_a_hub_reads_what_a_worker_writes() -> None:
    for case in CASES:
        Described(a_message(VALUES, **case), 64)
    Described(a_message(**RICH), 2)


def test_a_hub_takes_no_part_of_a_description() -> None:
    message = a_message(**RICH)
    for n in [*range(200), *range(200, len(message), 7)]:
        with pytest.raises(hpcomm.InvalidArgument, match="the description of an exchange: "):
            Described(message[:n], 2)
    with pytest.raises(hpcomm.InvalidArgument, match="the description of an exchange: 1 bytes follow it"):
        Described(message + b"x", 2)
    with pytest.raises(hpcomm.InvalidArgument, match="the description of an exchange: it has 8388609 bytes"):
        Described(message + bytes((8 << 20) + 1 - len(message)), 2)


def test_a_hub_survives_descriptions_with_changed_bytes() -> None:
    message, chance, taken = a_message(**RICH), random.Random(1), 0
    for _ in range(500):
        changed = bytearray(message)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        try:
            one = Described(bytes(changed), 2)
            one.plan(2, 1)
            assert one.memory(2, 1, 2, 2) > 0
            taken += 1
        except hpcomm.InvalidArgument:
            pass
    assert 0 < taken < 500


RACKED: dict[str, Any] = {"told_by": ToldOfRacks, "values": {"w": VALUES["w"], "b": VALUES["b"]}}
WORKERS, HUBS = 4, 2  # of such a job


def test_a_hub_survives_racks_with_changed_bytes() -> None:
    message, chance, taken = a_message(**RACKED), random.Random(2), 0
    first = message.index((4).to_bytes(4, "little") + bytes(5) + bytes(4 * 2))  # the number of workers; top and apart
    end = first + 9 + 2 * 4 * WORKERS
    for n in range(first, end):
        with pytest.raises(hpcomm.InvalidArgument, match="the description of an exchange: "):
            Described(message[:n], 1)
    for _ in range(300):
        changed = bytearray(message)
        for _ in range(chance.randint(1, 2)):
            changed[chance.randrange(first, end)] = chance.choice((0, 1, 2, 3, 127, 255))
        try:
            one = Described(bytes(changed), 1)
            one.plan(WORKERS, HUBS)
            assert one.memory(WORKERS, HUBS, 2, WORKERS) > 0
            taken += 1
        except hpcomm.InvalidArgument:
            pass
    assert 0 < taken < 300


def test_a_bound_on_memory_counts_what_a_hub_folds_and_relays() -> None:
    flat, racked = a_description(values=RACKED["values"]), Described(a_message(**RACKED), 1)
    for one in (flat, racked):
        one.plan(WORKERS, HUBS)
    elements = sum(value.size for value in RACKED["values"].values())
    grown = [sum(one.memory(WORKERS, HUBS, 0, WORKERS + hub) for hub in range(HUBS)) for one in (flat, racked)]
    # The owner of an element has a slot for the fold of the other rack. The other hub has a fold, and a slot for the
    # parameters. Hub 4 has a slot for the fold of the host of ranks 0 and 1.
    assert grown[1] - grown[0] > 4 * 4 * elements
    assert racked.descriptors(0, 1, WORKERS, 1) == 1 + 2
    assert racked.descriptors(WORKERS, 0, WORKERS, 1) == 1 + 2 * 2
    assert flat.descriptors(WORKERS, 1, WORKERS, 1) == 1 + 2 * WORKERS


def test_a_hub_takes_only_values_in_range() -> None:
    def changed(message: bytes, old: bytes, new: bytes) -> bytes:
        assert message.count(old) == 1
        return message.replace(old, new)

    plain = a_message()
    for message, wrong in (
        (a_message(plan=hpcomm.PlanOptions(cores=2)), "cores is 2: the hub has 1"),
        (changed(plain, b"\x03sgd\x03", b"\x03own\x03"), "no rule is called 'own'"),
        (changed(plain, b"\x01\0w\x08", b"\x01\0\0\x08"), "the name of key 0 is malformed"),
        (changed(plain, (21000).to_bytes(8, "little"), bytes(8)), "has no elements"),
        (changed(plain, (21000).to_bytes(8, "little"), (1 << 46).to_bytes(8, "little")), "a hub takes 1048576 chunks"),
        (changed(plain, b"hpcx\x02", b"hpcx\x01"), "its version is 1, not 2"),
        (changed(plain, b"hpcx\x02\0\0\0\x01", b"hpcx\x02\0\0\0\x02"), "it ends too early"),
    ):
        with pytest.raises(hpcomm.InvalidArgument, match=f"the description of an exchange: .*{wrong}"):
            Described(message, 1)


def test_a_bound_on_memory_grows_with_what_takes_memory() -> None:
    elements = VALUES["w"].size
    plain = a_description().memory(2, 1, 0)
    assert a_description(rule=hpcomm.Adam()).memory(2, 1, 0) == plain + 2 * 4 * elements
    assert a_description().memory(2, 1, 2) >= plain + 2 * 4 * elements
    assert a_description(consistency=hpcomm.ASYNC).memory(2, 1, 2) > a_description().memory(2, 1, 2)
    assert a_description().memory(2, 2, 0) == plain - 4 * elements // 2


def test_a_hub_needs_memory_for_the_rows_that_it_owns() -> None:
    one = a_description(plan=hpcomm.PlanOptions(cores=1, chunk_bytes=64 << 10))  # two chunks, the first one larger
    one.plan(2, 2)
    first, second = (one.memory(2, 2, 0, rank) for rank in (2, 3))
    assert first - second == 4 * (2 * (16 << 10) - VALUES["w"].size)
    assert (first + second) // 2 == one.memory(2, 2, 0)
    assert one.descriptors(2, 1, 2, 3) == 1 + 2 * 1 * 3 * 2


def test_an_exchange_has_the_weight_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(_core, "description_exchange", lambda *args: made.append(args))
    tenant = Tenant.__new__(Tenant)
    where: dict[str, Any] = {"title": "a/x", "rank": 2, "workers": 1, "hubs": 1, "at": ("127.0.0.1", 7700)}
    tenant.terms = Terms(secret=b"", config=Config(), weight=3.0, cores=1, **where)
    with hpcomm.init() as ctx:
        tenant._made(ctx, _Asked(b"E", a_message()), Holding(lambda old, new: None))
        assert made[0][1:3] == (ctx._handle, 3.0)


def test_ranks_are_found_as_the_launcher_numbers_them() -> None:
    for env, found in (
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "RANK": "0", "WORLD_SIZE": "9"}, (2, 3)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, (2, 3)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}, (5, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # a batch script
        (
            {
                "TORCHELASTIC_RUN_ID": "x",
                "RANK": "1",
                "WORLD_SIZE": "2",
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
                "SLURM_STEP_ID": "0",
            },
            (1, 2),
        ),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"PET_NODE_RANK": "1", "PET_NNODES": "2"}, (1, 2)),
        ({"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, (1, 4)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
    ):
        assert launch.numbered(env) == found


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "WORLD_SIZE=2, but RANK='2': must be from 0 to 1"),
        ({"RANK": "1"}, "RANK=1, but WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2, but RANK is not set"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "WORLD_SIZE=2, but RANK='x': must be from 0 to 1"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "started 2 processes, but OMPI_COMM_WORLD_RANK is not set"),
        ({"PMIX_RANK": "0"}, "a PMIx launcher do not tell the number of ranks: give rank and size"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "SLURM_STEP_ID=0, but SLURM_NTASKS is not set"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "WORLD_SIZE": "3"}, "they must agree"),
        ({"PET_NODE_RANK": "2", "PET_NNODES": "2"}, "by the PET_ variables of this pod, WORLD_SIZE=2, but RANK='2'"),
    ],
)
def test_variables_that_number_no_rank_are_told(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(hpcomm.ConfigError, match=re.escape(sentence)):
        launch.numbered(env)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there are no namespaces"),
        ("[namespaces.a]", "namespaces.a has no token_file"),
        ('[namespaces.a]\ntoken_file = "none"', "cannot be read"),
        ('[namespaces.a]\ntoken_file = "t"\nquota = 3', "namespaces.a.quota is not a setting of a hub"),
        ('cors = 3\n[namespaces.a]\ntoken_file = "t"', "cors is not a setting of a hub"),
        ('cores = 0\n[namespaces.a]\ntoken_file = "t"', "cores is 0: must be 1 to 64"),
        ('[namespaces.a]\ntoken_file = "t"\nmemory = "8 GB"', "namespaces.a.memory is '8 GB': must be bytes"),
        ('[namespaces."@admin"]\ntoken_file = "t"', "the name of a namespace is '@admin'"),
        ('[namespaces.a]\ntoken_file = "t"\n[namespaces.b]\ntoken_file = "t"', "two token files hold the same token"),
        (
            '[namespaces.a]\ntoken_file = "t"\nusers = "root"',
            "namespaces.a.users is 'root': must be a list of at most 32",
        ),
        (
            '[namespaces.a]\ntoken_file = "t"\nusers = [0, "no such"]',
            "namespaces.a.users[1] is 'no such': this host has no",
        ),
        ('[namespaces.a]\ntoken_file = "t"\nusers = [true]', "namespaces.a.users[0] is True: must be an int"),
        ('[namespaces.a]\ntoken_file = "t"\nusers = [-1]', "namespaces.a.users[0] is -1: must be 0 to 4294967294"),
        (f'[namespaces.a]\ntoken_file = "t"\nusers = {list(range(33))}', "must be a list of at most 32 users"),
        ("no toml", "is no TOML"),
    ],
)
def test_a_wrong_configuration_is_told(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "t").touch(0o600)
    (tmp_path / "t").write_text("sixteen bytes and more", encoding="utf-8")
    (tmp_path / "hub.toml").write_text(text, encoding="utf-8")
    with pytest.raises(hpcomm.ConfigError) as told:
        read_config(tmp_path / "hub.toml")
    assert sentence in str(told.value)


def test_users_are_names_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "t").touch(0o600)
    (tmp_path / "t").write_text("sixteen bytes and more", encoding="utf-8")
    text = '[namespaces.a]\ntoken_file = "t"\nusers = ["root", 1001, 0]\n'
    (tmp_path / "hub.toml").write_text(f'{text}[namespaces.b]\ntoken_file = "u"', encoding="utf-8")
    (tmp_path / "u").touch(0o600)
    (tmp_path / "u").write_text("sixteen other bytes", encoding="utf-8")
    spaces = read_config(tmp_path / "hub.toml").namespaces
    assert (spaces["a"].users, spaces["b"].users) == ((0, 1001), ())
    assert [spaces["a"].shares(user) for user in (1001, 1002, os.geteuid())] == [True, False, True]


def test_a_hub_on_a_large_host_has_64_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").touch(0o600)
    (tmp_path / "t").write_text("sixteen bytes and more", encoding="utf-8")
    (tmp_path / "hub.toml").write_text('[namespaces.a]\ntoken_file = "t"', encoding="utf-8")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(128)))
    assert read_config(tmp_path / "hub.toml").cores == 64


def test_wrong_arguments_are_told(alone: hpcomm.Context) -> None:
    with pytest.raises(hpcomm.ConfigError, match="handle of a service is 'hub://x'"):
        hpcomm.connect_service("hub://x", "t")
    with pytest.raises(hpcomm.InvalidArgument, match="must be HOST:PORT"):
        hpcomm.create_service("here", "a", "t")
    with pytest.raises(hpcomm.InvalidArgument, match="namespace is 'a b'"):
        hpcomm.create_service("here:1", "a b", "t")
    with pytest.raises(hpcomm.InvalidArgument, match="HPCOMM_SECRET_FILE is not set"):
        hpcomm.create_service("here:1", "a")
    with pytest.raises(hpcomm.InvalidArgument, match="rank is 2: must be 0 to 1"):
        hpcomm.connect_service(f"hub://here:1/a/b/{'0' * 32}", "t", 2, 2)
    with pytest.raises(hpcomm.InvalidArgument, match="must be a context of connect_service"):
        hpcomm.parameter_hub(alone, VALUES, servers="hub", rule=hpcomm.SGD())
