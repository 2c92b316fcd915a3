"""A hub's configuration: a file in TOML."""

import math
import os
import pwd
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _core
from ..config import read_secret
from ..errors import ConfigError, InvalidArgument, NotSupported
from ..stage import whole
from .handle import HubAddress, address, checked_name

ADMIN = "@admin"  # in the place of a namespace, which cannot have this name
_MOST_CORES = 64
# Bytes of tcp_window, for the largest weight and at least. Kernels grant the first without a setting of the system.
_WIDEST, _NARROWEST = 192 << 10, 16 << 10
_MOST_USER = (1 << 32) - 2  # the kernel takes the next number for no user
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|KiB|MiB|GiB|TiB)")


@dataclass(frozen=True)
class Namespace:
    """The tenants that share a token, and their quotas.

    Attributes:
        token: the bytes that prove a tenant's connections; not shown.
        jobs: the most jobs at a time.
        ranks: the most workers of a job.
        memory: the most bytes that the hub holds for all exchanges of the namespace together.
        descriptors: the most descriptors of the hub for all connections, jobs and exchanges of the namespace together.
        weight: the share of the hub's cores (EngineOptions.weight) of each exchange, and of links that it fills.
        checkpoints: the most jobs that may have saved state.
        disk: the most bytes of saved state.
        users: the users, by their numbers, whose workers share memory with the hub if they run on its host. The hub's
            own user always does.
    """

    name: str
    token: bytes = field(repr=False)
    jobs: int
    ranks: int
    memory: int
    descriptors: int
    weight: float
    checkpoints: int
    disk: int
    users: tuple[int, ...] = ()

    def shares(self, user: int) -> bool:
        """Returns whether workers of a user may share memory with the hub."""
        return user == os.geteuid() or user in self.users


@dataclass(frozen=True)
class HubConfig:
    """The configuration of a hub.

    Attributes:
        listen: where the hub listens; port 0 stands for any free port.
        cores: the threads that fold and apply, for all jobs together.
        memory: the most bytes that the hub holds for all exchanges.
        drain_seconds: how long jobs may go on after SIGTERM.
        wait_seconds: how long a job that was created may wait for its first rank.
        admin: the token of `hpcomm hub status`, `jobs`, `evict` and `drain`; None: all these requests are refused.
        namespaces: by name.
        checkpoints: the folder for saved state; None: the hub saves nothing.
        metrics: where the hub serves metrics; None: nowhere.
        socket_ifname, devices: the NICs for data, as the settings of Config; None: what the environment says.
    """

    listen: HubAddress
    cores: int
    memory: int
    drain_seconds: float
    wait_seconds: float
    admin: bytes | None = field(repr=False)
    namespaces: Mapping[str, Namespace]
    checkpoints: Path | None
    metrics: HubAddress | None
    socket_ifname: str | None = None
    devices: str | None = None

    def token(self, name: str) -> bytes | None:
        """Returns the token of a namespace, or of ADMIN; None if there is no such name."""
        return self.admin if name == ADMIN else self.namespaces[name].token if name in self.namespaces else None

    def window(self, space: Namespace) -> int:
        """Returns the setting tcp_window for jobs of a namespace: in proportion to the weight, since connections that
        fill a link share it by their windows. 0 where all weights are equal."""
        weights = [one.weight for one in self.namespaces.values()]
        if min(weights) == max(weights):
            return 0
        return max(round(_WIDEST * space.weight / max(weights)), _NARROWEST)


def read_config(path: str | os.PathLike[str], listen: str | None = None, metrics: str | None = None) -> HubConfig:
    """Reads a hub's configuration. listen and metrics replace the file's `listen` and `metrics`.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or has an unknown name or a value out of range; or a token
            file cannot be used (see HPCOMM_SECRET_FILE).
        NotSupported: Python is older than 3.11, and tomli is not installed.
    """
    file = Path(path)
    try:
        table = _loaded(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is no TOML: {error}") from None
    try:
        return _config(table, file.parent, listen, metrics)
    except InvalidArgument as wrong:
        raise ConfigError(f"{file}: {wrong}") from None


def _loaded(data: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415
    else:
        try:
            import tomli as tomllib  # noqa: PLC0415
        except ModuleNotFoundError:
            raise NotSupported("Python 3.10 has no reader of TOML: pip install tomli") from None
    found: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    return found


def _config(table: dict[str, Any], folder: Path, listen: str | None, metrics: str | None) -> HubConfig:
    of = _Table("", table)
    cpus = len(os.sched_getaffinity(0))
    written, admin = of.take("listen", "127.0.0.1:7700"), of.take("admin_token_file", None)
    shown = of.take("metrics", None)
    spaces = of.take("namespaces", {})
    if not isinstance(spaces, dict) or not spaces:
        raise InvalidArgument("there are no namespaces: give one by [namespaces.NAME] with a token_file")
    memory = of.size("memory", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    found = HubConfig(
        listen=address(written if listen is None else listen),
        cores=of.whole("cores", min(cpus, _MOST_CORES), 1, _MOST_CORES),
        memory=memory,
        drain_seconds=of.seconds("drain_seconds", 60),
        wait_seconds=of.seconds("wait_seconds", 600),
        admin=None if admin is None else _token("admin_token_file", admin, folder),
        namespaces={name: _namespace(name, spaces[name], folder, memory) for name in spaces},
        checkpoints=_folder(of.take("checkpoints", None), folder),
        metrics=_metrics(shown if metrics is None else metrics),
        socket_ifname=of.text("socket_ifname"),
        devices=of.text("devices"),
    )
    of.end()
    tokens = [one.token for one in found.namespaces.values()] + ([] if found.admin is None else [found.admin])
    if len(set(tokens)) < len(tokens):
        raise InvalidArgument("two token files hold the same token: give each namespace and the administrator another")
    return found


def _metrics(given: Any) -> HubAddress | None:
    try:
        return None if given is None else address(given)
    except InvalidArgument:
        raise InvalidArgument(f"metrics is {given!r}: must be HOST:PORT, where the hub serves metrics") from None


def _namespace(name: str, table: Any, folder: Path, memory: int) -> Namespace:
    checked_name("the name of a namespace", name)
    of = _Table(f"namespaces.{name}.", table)
    file = of.take("token_file", None)
    if file is None:
        raise InvalidArgument(f"namespaces.{name} has no token_file")
    own = of.size("memory", memory)
    checkpoints = of.whole("checkpoints", 16, 0, 1 << 20)
    found = Namespace(
        name,
        _token(f"namespaces.{name}.token_file", file, folder),
        jobs=of.whole("jobs", 16, 1, 10000),
        ranks=of.whole("ranks", 1024, 1, 1 << 20),
        memory=own,
        descriptors=of.whole("descriptors", 1 << 20, 1, 1 << 30),
        weight=of.number("weight", 1.0, 1e-6, 1e6),
        checkpoints=checkpoints,
        disk=of.size("disk", own * checkpoints),
        users=_users(f"namespaces.{name}.users", of.take("users", [])),
    )
    of.end()
    return found


def _users(what: str, given: Any) -> tuple[int, ...]:
    """Returns the numbers of users that are given by numbers and names."""
    if not isinstance(given, list) or len(given) > _core.MOST_USERS:
        raise InvalidArgument(f"{what} is {given!r}: must be a list of at most {_core.MOST_USERS} users")
    return tuple(dict.fromkeys(_user(f"{what}[{i}]", one) for i, one in enumerate(given)))


def _user(what: str, given: Any) -> int:
    if not isinstance(given, str):
        return whole(what, given, 0, _MOST_USER)
    try:
        return pwd.getpwnam(given).pw_uid
    except (KeyError, ValueError):
        raise InvalidArgument(f"{what} is {given!r}: this host has no user of this name") from None


def _token(what: str, file: Any, folder: Path) -> bytes:
    if not isinstance(file, str) or not file:
        raise InvalidArgument(f"{what} is {file!r}: must be the path of a file")
    path = str(folder / file)
    token = read_secret(path, f"{what} = {path}")
    assert token is not None
    return token


def _folder(given: Any, folder: Path) -> Path | None:
    """Returns the folder for saved state, and makes it if it does not exist."""
    if given is None:
        return None
    if not isinstance(given, str) or not given:
        raise InvalidArgument(f"checkpoints is {given!r}: must be the path of a folder")
    path = folder / given
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failed:
        raise InvalidArgument(f"checkpoints is {given!r}: {path} cannot be made: {failed.strerror}") from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise InvalidArgument(f"checkpoints is {given!r}: the hub's user may not write into {path}")
    return path


class _Table:
    """A table of the file. Each name that is there must be taken."""

    def __init__(self, prefix: str, table: Any) -> None:
        if not isinstance(table, dict):
            raise InvalidArgument(f"{prefix.rstrip('.')} is {table!r}: must be a table")
        self._prefix, self._left = prefix, dict(table)

    def take(self, name: str, default: Any) -> Any:
        return self._left.pop(name, default)

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        return whole(f"{self._prefix}{name}", self.take(name, default), least, most)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise InvalidArgument(f"{self._prefix}{name} is {value!r}: must be a number from {least:g} to {most:g}")
        return float(value)

    def text(self, name: str) -> str | None:
        value = self.take(name, None)
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(f"{self._prefix}{name} is {value!r}: must be text")
        return value

    def seconds(self, name: str, default: float) -> float:
        return self.number(name, default, 0, math.inf)

    def size(self, name: str, default: int) -> int:
        value = self.take(name, default)
        match = _SIZE.fullmatch(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
        if match is None:
            raise InvalidArgument(f'{self._prefix}{name} is {value!r}: must be bytes, such as 1048576 or "8 GiB"')
        return int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]

    def end(self) -> None:
        if self._left:
            raise InvalidArgument(f"{self._prefix}{next(iter(self._left))} is not a setting of a hub")
