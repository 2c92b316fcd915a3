"""All settings of hpcomm, each declared once with its type, default and help. A setting is an argument of init or an
HPCOMM_ variable."""

import difflib
import math
import operator
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, TypeVar

from ._core import transports
from .errors import ConfigError
from .words import SETTINGS

Number = TypeVar("Number", int, float)
PREFIX = "HPCOMM_"
DEBUG_LEVELS = ("WARN", "INFO", "TRACE")
TCP_STREAMS = 8  # the most connections of a pair of ranks
_INIT_SECONDS = 30.0  # if neither init_timeout nor timeout is set
SECRET_BYTES = (16, 4096)  # the shortest and the longest secret


def _seconds(value: object) -> float:
    seconds = _number(float, value, "must be a number of seconds")
    if not math.isfinite(seconds):
        raise ValueError("must be a finite number of seconds")
    return seconds


def _timeout(value: object) -> float:
    seconds = _seconds(value)
    if seconds <= 0:
        raise ValueError("must be a number of seconds, more than 0")
    return seconds


def _seed(value: object) -> int:
    wanted = "must be an integer from 0 to 2**64 - 1"
    seed = _number(lambda text: int(text, 0) if isinstance(text, str) else operator.index(text), value, wanted)
    if not 0 <= seed < 2**64:
        raise ValueError(wanted)
    return seed


def _number(parse: Callable[[Any], Number], value: object, wanted: str) -> Number:
    """Returns parse(value); raises ValueError with the sentence wanted if parse cannot read the value."""
    try:
        return parse(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(wanted) from None


def _transports(value: object) -> str:
    names, known = [name.strip() for name in str(value).split(",") if name.strip()], transports()
    for name in names:
        if name not in known:
            raise ValueError(f"there is no transport {name!r}; there are {', '.join(known)}")
    return ",".join(names)


def _integer(least: int, most: int) -> Callable[[object], int]:
    wanted = f"must be an integer from {least} to {most}"

    def parse(value: object) -> int:
        number = _number(int if isinstance(value, str) else operator.index, value, wanted)
        if not least <= number <= most:
            raise ValueError(wanted)
        return number

    return parse


def _path(value: object) -> str:
    try:
        return os.fsdecode(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError("must be the path of a file") from None


def _debug(value: object) -> str:
    level = str(value).upper()
    if level not in DEBUG_LEVELS:
        raise ValueError(f"must be one of {', '.join(DEBUG_LEVELS)}")
    return level


def _way(value: object) -> str:
    if value not in ("", "auto", "paper"):
        raise ValueError("must be auto or paper")
    return str(value)


def _switch(value: object) -> bool:
    if str(value) not in ("0", "1", "False", "True"):
        raise ValueError("must be 0 or 1")
    return str(value) in ("1", "True")


def _setting(default: object, kind: str, parse: Callable[[object], object], text: str) -> Any:
    return field(default=default, metadata={"kind": kind, "parse": parse, "help": text})


@dataclass(frozen=True)
class Config:
    """The settings of one context. `hpcomm info -c` prints each with the source of its value."""

    timeout: float = _setting(1800.0, "seconds", _timeout, "default deadline of every blocking call")
    init_timeout: float = _setting(
        0.0, "seconds", _seconds, "deadline of init; 0: timeout where that is set, else 30 s"
    )
    look_after: float = _setting(
        30.0,
        "seconds",
        _timeout,
        "a wait that lasts finds out who holds it up: a third of this ends it at a stopped rank or a deadlock, and a "
        "rank that computes for all of this is warned of",
    )
    transport: str = _setting(
        "", "list", _transports, 'transports to use, best first, e.g. "shm,tcp"; empty: all but loop'
    )
    spin: float = _setting(
        -1.0, "seconds", _seconds, "how long a wait spins before it yields; negative: chosen by cores and ranks"
    )
    yield_: float = _setting(
        -1.0, "seconds", _seconds, "how long a wait yields before it sleeps; negative: chosen by cores and ranks"
    )
    loop_seed: int = _setting(
        0, "integer", _seed, "transport loop only: 0 delivers at once, another seed delays, splits and reorders"
    )
    silence: float = _setting(
        10.0, "seconds", _timeout, "a rank on another host that is silent for this long counts as failed"
    )
    socket_ifname: str = _setting(
        "", "list", str, 'interfaces for TCP: "eth,ib" by prefix, "=eth0" exactly, "^docker" all but these; empty: all'
    )
    tcp_streams: int = _setting(
        1, "integer", _integer(1, TCP_STREAMS), f"connections that a large put is striped over, 1 to {TCP_STREAMS}"
    )
    tcp_congestion: str = _setting(
        "", "name", str, 'congestion control of TCP, e.g. "dctcp"; empty: the system\'s, but cubic or reno for bbr'
    )
    tcp_window: int = _setting(
        0,
        "integer",
        _integer(0, 1 << 30),
        "bytes that a data connection holds unread: a bound on a peer's bytes on the way; 0: the kernel chooses",
    )
    devices: str = _setting(
        "", "list", str, 'RDMA ports: "mlx5_0,mlx5_1:1" by prefix, "=mlx5_1" exactly, "^mlx5_2" not these; empty: all'
    )
    secret_file: str = _setting(
        "", "path", _path, "file of the job's secret, readable by its owner alone; needed across hosts without mpirun"
    )
    master_port: int = _setting(
        0,
        "port",
        _integer(0, 65535),
        "port of rank 0 where the job starts without mpirun; 0: MASTER_PORT, or chosen by SLURM's job id",
    )
    service: str = _setting(
        "", "text", str, "connect_service: the job at a hub, the text that create_service or `hpcomm hub create` gave"
    )
    timeline: str = _setting(
        "",
        "path",
        _path,
        "file for a timeline of each rank (Chrome's trace format); the rank replaces %r, or is added as .rankN",
    )
    debug: str = _setting("WARN", "level", _debug, "level of the logger: WARN, INFO (peers, notes) or TRACE (calls)")
    overlap: bool = _setting(
        False, "switch", _switch, "hpcomm.torch: 1: step() returns while parameters are on their way"
    )
    way: str = _setting(
        "", "word", _way, "hpcomm.torch: auto or paper: how linear layers are exchanged, by what costs least"
    )

    @property
    def init_seconds(self) -> float:
        """Seconds for which init waits for all ranks."""
        if self.init_timeout > 0:
            return self.init_timeout
        return _INIT_SECONDS if self.timeout == Config.timeout else self.timeout


class Settings(TypedDict, total=False):
    """The fields of Config, as keyword arguments of init; None counts as not given."""

    timeout: float | None
    init_timeout: float | None
    look_after: float | None
    transport: str | None
    spin: float | None
    yield_: float | None
    loop_seed: int | None
    silence: float | None
    socket_ifname: str | None
    tcp_streams: int | None
    tcp_congestion: str | None
    tcp_window: int | None
    devices: str | None
    secret_file: str | os.PathLike[str] | None
    master_port: int | None
    service: str | None
    timeline: str | os.PathLike[str] | None
    debug: str | None
    overlap: bool | None
    way: str | None


@dataclass(frozen=True)
class Setting:
    """A setting, as `hpcomm info -c` shows it."""

    variable: str
    argument: str
    kind: str
    default: object
    help: str


def variable(name: str) -> str:
    """Returns the environment variable of a setting, e.g. HPCOMM_YIELD for yield_."""
    return PREFIX + name.rstrip("_").upper()


def settings() -> tuple[Setting, ...]:
    return tuple(
        Setting(variable(f.name), f.name, f.metadata["kind"], f.default, f.metadata["help"]) for f in fields(Config)
    )


def _parse(name: str, value: object, told_as: str) -> object:
    parse = next(f.metadata["parse"] for f in fields(Config) if f.name == name)
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigError(f"{told_as}={value!r}: {error}") from None


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"


def resolve(environ: Mapping[str, str], arguments: Mapping[str, object]) -> Config:
    """Returns the Config for an environment and for init's arguments, which override the environment. An argument that
    is None counts as not given.

    Raises:
        ConfigError: a setting does not accept its value, or an argument's name is not a setting.
    """
    values: dict[str, Any] = {}
    known = {setting.argument: setting.variable for setting in settings()}
    for name, value in arguments.items():
        if name not in known:
            hint = SETTINGS.get(name)
            raise ConfigError(f"init has no setting {name!r}" + (f": {hint}" if hint else _nearest(name, list(known))))
        if value is not None:
            values[name] = _parse(name, value, name)
    for name, told_as in known.items():
        if name not in values and environ.get(told_as):
            values[name] = _parse(name, environ[told_as], told_as)
    return Config(**values)


def read_secret(path: str, told_as: str | None = None) -> bytes | None:
    """Returns the secret in a file, without the newline at its end, or None if path is "". told_as: the words for the
    file in errors.

    Raises:
        ConfigError: the file cannot be read, other users may read or write it, or the secret is too short or too long.
    """
    if not path:
        return None
    told = f"{variable('secret_file')}={path}" if told_as is None else told_as
    least, most = SECRET_BYTES
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{told} is not a regular file")
            if status.st_mode & 0o077:
                raise ConfigError(
                    f"{told} may be read or written by others (mode {status.st_mode & 0o777:04o}): chmod 600 {path}"
                )
            secret = file.read(most + 2).removesuffix(b"\n")
    except OSError as error:
        raise ConfigError(f"{told} cannot be read: {error.strerror}") from None
    if not least <= len(secret) <= most:
        raise ConfigError(
            f"{told} holds {len(secret)} bytes: must be {least} to {most}, e.g. head -c 32 /dev/urandom > {path}"
        )
    return secret


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each HPCOMM_ variable that is no setting, with the most similar name of a setting."""
    known = [setting.variable for setting in settings()]
    return [
        f"{name} is not a setting of hpcomm{_nearest(name, known)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known
    ]
