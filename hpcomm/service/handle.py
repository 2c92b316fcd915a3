"""The text by which the ranks of a job find the job at its hubs."""

import re
from dataclasses import dataclass

from ..errors import ConfigError, InvalidArgument

NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NONCES = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class ServiceHandle:
    """A job at a hub, or at several. Its text is hub://HOST:PORT,HOST:PORT/NAMESPACE/JOB/NONCE."""

    hubs: "tuple[HubAddress, ...]"
    namespace: str
    job: str
    nonce: str

    def __str__(self) -> str:
        return f"hub://{','.join(map(str, self.hubs))}/{self.namespace}/{self.job}/{self.nonce}"


def parsed(text: object) -> ServiceHandle:
    """Returns the handle of a text. Raises ConfigError for other texts."""
    scheme, _, rest = str(text).partition("://")
    parts = rest.split("/")
    good = scheme == "hub" and len(parts) == 4 and all(NAMES.fullmatch(part) for part in parts[1:3])
    if not good or not NONCES.fullmatch(parts[3]):
        raise ConfigError(
            f"the handle of a service is {str(text)[:200]!r}: must be the text that create_service returned, or that "
            "`hpcomm hub create` printed, hub://HOST:PORT/NAMESPACE/JOB/NONCE"
        )
    return ServiceHandle(addresses(parts[0].split(",")), *parts[1:])


def addresses(hubs: object) -> "tuple[HubAddress, ...]":
    """Returns the addresses of one hub ("HOST:PORT") or several. Raises InvalidArgument for other values."""
    given = [hubs] if isinstance(hubs, str) else hubs
    if not isinstance(given, list | tuple) or not given:
        raise InvalidArgument(f"hubs is {hubs!r}: must be 'HOST:PORT', or a list of these")
    found = tuple(address(hub) for hub in given)
    if len(set(found)) < len(found):
        raise InvalidArgument(f"hubs is {hubs!r}: must name each hub once")
    return found


@dataclass(frozen=True)
class HubAddress:
    """Where a hub listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: object) -> HubAddress:
    """Returns the address in a text, "HOST:PORT" or "[IPV6]:PORT". Raises InvalidArgument for other values."""
    host, _, port = str(text).rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535 or "/" in host or "," in host:
        raise InvalidArgument(f"the address of a hub is {text!r}: must be HOST:PORT")
    return HubAddress(host, int(port))


def checked_name(what: str, name: object) -> str:
    """Returns a name of a namespace or a job. Raises InvalidArgument for other values."""
    if not isinstance(name, str) or not NAMES.fullmatch(name):
        raise InvalidArgument(f"{what} is {name!r}: must be 1 to 63 letters, digits, '.', '_' or '-'")
    return name
