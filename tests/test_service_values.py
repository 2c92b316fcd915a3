"""The values that a tenant and its hub exchange: descriptions, handles, configurations and arguments."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import CASES, VALUES

import hpcomm
from hpcomm import launch
from hpcomm.config import Config
from hpcomm.service.config import read_config
from hpcomm.service.described import Described, described, parsed
from hpcomm.service.tenant import Terms, _Served


def a_description(**more: Any) -> Described:
    given: dict[str, Any] = {
        "rule": hpcomm.SGD(lr=0.5),
        "consistency": hpcomm.BSP,
        "plan": hpcomm.PlanOptions(cores=1),
        **more,
    }
    shapes = {"w": (3, 4), **dict.fromkeys(given["rule"] if isinstance(given["rule"], dict) else (), (3, 4))}
    return described(shapes, {}, engine=hpcomm.EngineOptions(), **given)


def test_a_description_comes_back_as_it_was() -> None:
    for case in CASES:
        one = a_description(**{name: value for name, value in case.items() if name in ("rule", "consistency")})
        assert parsed(one.text()) == one
    codecs = {"w": hpcomm.codec.Threshold(0.5, up=1.0, at_least=9e9), "b": hpcomm.codec.Factors(3, blocks=2)}
    one = a_description(
        plan=hpcomm.PlanOptions(codec=codecs, cores=2, depth=3),
        rule=hpcomm.ProxSGD(prox=hpcomm.prox.ElasticNet(0.5, 0.25)),
        consistency=hpcomm.Consistency(quorum=1, grace=float("inf")),
    )
    assert parsed(one.text()) == one


def spoiled(change: Callable[[dict[str, Any]], object]) -> str:
    message = json.loads(a_description(plan=hpcomm.PlanOptions(codec=hpcomm.codec.TopK(0.5))).text())
    change(message)
    return json.dumps(message)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        spoiled(lambda m: m["plan"]["codec"]["fields"].update(kernel=4096)),
        spoiled(lambda m: m["rule"].update({"is": "Rule"})),
        spoiled(lambda m: m["rule"].update({"is": "Consistency", "fields": {}})),
        spoiled(lambda m: m["rule"]["fields"].update(lr="0.5")),
        spoiled(lambda m: m["rule"]["fields"].update(_state=1)),
        spoiled(lambda m: m.update(keys=[["w", [3, -4]]])),
        spoiled(lambda m: m.update(keys=[["w", [1 << 47, 1 << 47]]])),
        spoiled(lambda m: m.update(keys=[["w", [3]], ["w", [3]]])),
        spoiled(lambda m: m.update(keys=[["w", [1 << 40]]])),
        spoiled(lambda m: m.update(consistency=3)),
        spoiled(lambda m: m["plan"].update(depth={"list": [1]})),
        spoiled(lambda m: m["plan"].update(depth=None)),
        spoiled(lambda m: m["plan"].update(codec=7)),
        spoiled(lambda m: m.pop("engine")),
    ],
)
def test_a_hub_takes_no_other_description(text: str) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match="description of an exchange"):
        parsed(text)


def test_a_bound_on_memory_grows_with_what_takes_memory() -> None:
    plain = a_description().memory(2, 0, 12)
    assert a_description(rule=hpcomm.Adam()).memory(2, 0, 12) == plain + 2 * 4 * 12
    assert a_description().memory(2, 2, 12) >= plain + 2 * 4 * 12
    assert a_description(consistency=hpcomm.ASYNC).memory(2, 2, 12) > a_description().memory(2, 2, 12)
    assert a_description().memory(2, 0, 5) == plain - 4 * 7


def test_an_exchange_has_the_weight_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[hpcomm.EngineOptions] = []
    monkeypatch.setattr("hpcomm.Exchange.__init__", lambda *args, engine, **more: made.append(engine))
    terms = Terms(title="a/x", rank=2, workers=2, hubs=1, secret=b"", config=Config(), weight=3.0, cores=1)
    _Served(lambda plan: None, None, a_description(), terms)  # type: ignore[arg-type]
    assert (made[0].weight, made[0].progress) == (3.0, "thread")


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
