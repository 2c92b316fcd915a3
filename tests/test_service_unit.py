"""A hub under systemd: what it sends to NOTIFY_SOCKET, the check of its file, and the unit that is shipped."""

import configparser
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from served import SECONDS, TOKENS, Served, asking, caller, command, joining, run, train

from hpcomm.cli import main
from hpcomm.service import hub as hubs
from hpcomm.service import proof
from hpcomm.service.config import read_config

FOLDER = Path(__file__).resolve().parents[1] / "packaging/systemd"
NO_WRITABLE_CODE = "import ctypes; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)"  # Linux 6.3: MemoryDenyWriteExecute


def systemd(where: str) -> socket.socket:
    """The socket at which systemd listens."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind("\0" + where[1:] if where.startswith("@") else where)
    one.settimeout(SECONDS)
    return one


def heard(listener: socket.socket) -> dict[str, str]:
    lines = listener.recv(4096).decode().split("\n")
    return dict(line.split("=", 1) for line in lines)


def test_systemd_hears_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = f"@hpcomm {os.getpid()} {time.monotonic_ns()}"
    monkeypatch.setenv("NOTIFY_SOCKET", where)
    with closing(systemd(where)) as listener:
        hub = Served(tmp_path, NO_WRITABLE_CODE, is_fresh=True, drain_seconds=3600)
        assert heard(listener) == {"READY": "1", "STATUS": f"serves at {hub.where}"}
        with closing(caller(hub)) as one:
            assert len(one.recv(proof.HELLO, socket.MSG_WAITALL)) == proof.HELLO
        assert run(1, train, hub.create(), 1) == run(1, train, hub.create("b"), 1, token=TOKENS["b"])
        for text, words in ((hub.file.read_text(), "4 namespaces"), ("wrong", "the old configuration stays")):
            hub.file.write_text(text)
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            hub.reload(words)
            reloads = heard(listener)
            assert reloads.pop("RELOADING") == "1"
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            assert before // 1000 <= int(reloads.pop("MONOTONIC_USEC")) <= after // 1000
            assert not reloads
            assert heard(listener)["READY"] == "1"
        hub.wait(lambda: not hub.jobs())
        hub.create()
        hub.process.terminate()
        stops = heard(listener)
        assert stops == {
            "STOPPING": "1",
            "STATUS": "drains: 1 jobs have 3600 s",
            "EXTEND_TIMEOUT_USEC": str((3600 + 2 * int(hubs.STOP_SECONDS)) * 10**6),
        }
        assert hub.process.wait(SECONDS) == 0
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(1)


def test_a_hub_that_drains_says_no_more_that_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", where)
    with closing(systemd(where)) as listener:
        hub = Served(tmp_path, drain_seconds=60)
        assert heard(listener)["READY"] == "1"
        with closing(asking(hub)) as worker:
            worker.ask(joining(hub.create(), 0, 1))
            hub.process.terminate()
            assert heard(listener)["STATUS"] == "drains: 1 jobs have 60 s"
            hub.reload("4 namespaces")
            hub.process.terminate()
            assert heard(listener)["STATUS"] == "drains: 1 jobs have 0 s"
            assert hub.process.wait(SECONDS) == 0


def test_a_hub_serves_where_systemd_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = str(tmp_path / "nobody")
    monkeypatch.setenv("NOTIFY_SOCKET", where)
    hub = Served(tmp_path, drain_seconds=0)
    hub.until(f"systemd does not listen at NOTIFY_SOCKET={where}: ")
    assert '"version"' in command(hub, "status", hub.where, "--json")
    assert hub.end() == 0


def test_a_configuration_is_checked_before_it_is_served(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    (tmp_path / "a.token").touch(0o600)
    (tmp_path / "a.token").write_text("a token of sixteen bytes", encoding="utf-8")

    def checked(text: str, *more: str) -> tuple[int, str]:
        file.write_text(text, encoding="utf-8")
        ended = CliRunner().invoke(main, ["hub", "serve", "--check", "--config", str(file), *more])
        return ended.exit_code, ended.output

    good = 'checkpoints = "saved"\n[namespaces.a]\ntoken_file = "a.token"'
    does = f"the hub listens at 127.0.0.1:7700, serves metrics at [::1]:9, saves into {tmp_path / 'saved'}"
    told = f"{does}, has no administrator, and has the namespaces a\n"
    assert checked(good, "--metrics", "[::1]:9") == (0, told)
    assert checked(f'{good}\nusers = ["root", 7]')[1].endswith("and has the namespaces a (users 0, 7)\n")
    assert checked(f"cores = 0\n{good}") == (2, f"hpcomm hub: {file}: cores is 0: must be 1 to 64\n")
    status, told = checked(good.replace("a.token", "none.token"))
    assert status == 2
    assert told.endswith("none.token cannot be read: No such file or directory\n")


# ---- the unit ------------------------------------------------------------------------------------------------------


def unit() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FOLDER / "hpcomm-hub.service")
    assert set(parser) == {"DEFAULT", "Unit", "Service", "Install"}
    return dict(parser["Service"])


def test_the_unit_fits_the_hub(tmp_path: Path) -> None:
    service = unit()
    (tmp_path / "a.token").touch(0o600)
    (tmp_path / "a.token").write_text("a token of sixteen bytes")
    (tmp_path / "hub.toml").write_text('[namespaces.a]\ntoken_file = "a.token"')
    usual = read_config(tmp_path / "hub.toml").drain_seconds
    assert int(service["TimeoutStopSec"]) > usual + hubs.STOP_SECONDS
    assert (service["Type"], service["KillSignal"]) == ("notify", "SIGTERM")
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    user = (FOLDER / "hpcomm-hub.sysusers.conf").read_text(encoding="utf-8")
    assert f"\nu {service['User']} - " in user
    assert user.rstrip().endswith(f"/var/lib/{service['StateDirectory']}")
    for needed_off in ("PrivateNetwork", "PrivateUsers", "PrivateDevices", "JoinsNamespaceOf", "IPAddressDeny"):
        assert needed_off not in service
    assert set(service["RestrictAddressFamilies"].split()) == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "hpcomm-hub.service"
    text = (FOLDER / file.name).read_text(encoding="utf-8")
    file.write_text(text.replace("=/opt/hpcomm/bin/hpcomm ", f"={sys.executable} "))
    found = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    told = [line for line in found.stderr.splitlines() if file.name in line]  # not of the units of this machine
    assert (found.returncode, told) == (0, [])
