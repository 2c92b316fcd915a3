"""Hubs for the benchmarks, each in its own process."""

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.common.launch import ROOT
from hpcomm.service import ADMIN, HubConnection, address

SECONDS = 30.0  # for a hub to begin, and to end
WAIT = 60  # seconds that a job waits for its workers


class Hub:
    """A hub, with a namespace for each of weights.

    Attributes:
        where: HOST:PORT.
        tokens: of the namespaces, by name, and of the administrator.
    """

    def __init__(
        self,
        folder: Path,
        weights: Mapping[str, float],
        host: str = "127.0.0.1",
        cpus: Sequence[int] = (),
        popen: Callable[..., "subprocess.Popen[Any]"] = subprocess.Popen,
    ) -> None:
        """Starts it in a new folder; begun() waits for it. cpus: the CPUs that it may use; popen: starts it, perhaps on
        another host."""
        folder.mkdir()
        self._folder = folder
        self.tokens = {name: secrets.token_hex(32) for name in (*weights, ADMIN)}
        for name, token in self.tokens.items():
            path = self.token_file(name)
            path.touch(0o600)
            path.write_text(token, encoding="utf-8")
        lines = ["cores = 1", f'admin_token_file = "{ADMIN}.token"', f"wait_seconds = {WAIT}", "drain_seconds = 0"]
        for name, weight in weights.items():
            lines += [f"[namespaces.{name}]", f'token_file = "{name}.token"', "jobs = 100", f"weight = {weight:g}"]
        (folder / "hub.toml").write_text("\n".join(lines), encoding="utf-8")
        pinned = ["taskset", "-c", ",".join(map(str, cpus))] if cpus else []
        command = [*pinned, sys.executable, "-m", "hpcomm", "hub", "serve"]
        command += ["--listen", f"{host}:0", "--config", str(folder / "hub.toml")]
        self.lines: list[str] = []
        self.process = popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._listens = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def begun(self) -> None:
        """Waits until the hub listens. Raises SystemExit if it does not."""
        if not self._listens.wait(SECONDS) or self.process.poll() is not None:
            raise SystemExit(f"the hub did not begin:\n{''.join(self.lines)}")
        self.where = next(line for line in self.lines if "listens at " in line).split()[-1]

    def token_file(self, name: str) -> Path:
        return self._folder / f"{name}.token"

    @property
    def pid(self) -> int:
        """The hub's number on this host: that of the last descendant of the process that was started."""
        found = self.process.pid
        while below := Path(f"/proc/{found}/task/{found}/children").read_text(encoding="utf-8").split():
            found = int(below[0])
        return found

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line)
            if "listens at " in line:
                self._listens.set()
        self._listens.set()

    def status(self) -> dict[str, Any]:
        """Returns the hub's answer to `hpcomm hub status`. For a hub on this host."""
        with closing(HubConnection(address(self.where), ADMIN, self.tokens[ADMIN].encode(), SECONDS)) as hub:
            return hub.ask({"op": "status"}, SECONDS)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()


def memory(pid: int) -> dict[str, int]:
    """Returns the bytes of a process: all resident pages; pages by the number of processes that share them; and of
    these its own, which are not of files. The pages of a library count less while other processes use it too."""
    parts = {"Rss": "rss", "Pss": "pss", "Pss_Anon": "own", "Pss_Shmem": "own"}
    found = dict.fromkeys(parts.values(), 0)
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name in parts:
            found[parts[name]] += int(rest.split()[0]) << 10
    return found


def held(pid: int) -> dict[str, int]:
    """Returns how many descriptors and threads a process has."""
    return {what: len(os.listdir(f"/proc/{pid}/{at}")) for what, at in (("descriptors", "fd"), ("threads", "task"))}
