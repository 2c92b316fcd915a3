"""Binds the description of an exchange at hubs: a message that a worker writes and a hub reads."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .._ffi import ffi, lib
from .exchange import chained
from .handle import collected, owned
from .status import check, checking, text


def description_write(hubs: list[Any], configs: list[tuple[Any, object]]) -> bytes:
    """Returns the message that describes an exchange.

    Args:
        hubs: an hpc_hub or, if each rack has a hub, an hpc_hosts for each of configs.
        configs: values of exchange_config.
    """
    own = [_without_filters(config) for config, _ in configs]
    racks = [_of_workers(one) if ffi.typeof(one) is _HOSTS else (ffi.NULL, None) for one in hubs]
    flat = [ffi.NULL if ffi.typeof(one) is _HOSTS else one for one in hubs]
    given = (
        ffi.new("const hpc_hub *[]", flat),
        ffi.new("const hpc_hosts *[]", [one for one, _ in racks]),
        chained([config for config, _ in own]),
    )
    n = int(lib.hpc_description_write(*given, ffi.NULL, 0))
    check(min(0, n))
    message = ffi.new("unsigned char[]", n)
    lib.hpc_description_write(*given, message, n)
    return bytes(ffi.buffer(message, n))


_HOSTS = ffi.typeof("hpc_hosts *")


def _of_workers(hosts: Any) -> tuple[Any, object]:
    """Returns a copy of the arguments of a plan with servers, without the servers. The second element has what the copy
    points to."""
    made = ffi.new("hpc_hosts *", hosts[0])
    working = [i for i in range(made.n_workers) if not made.serves[i]]
    groups = ffi.new(
        "int[]", [made.groups[level * made.n_workers + i] for level in range(made.n_levels) for i in working]
    )
    made.groups, made.n_workers = groups, len(working)
    made.leads = made.serves = ffi.NULL
    return made, groups


def _without_filters(config: Any) -> tuple[Any, object]:
    """Returns a copy of a configuration whose codecs select elements by code of the library, which gives the same bytes
    as Numba's: a hub needs no compiler. The second element keeps the memory that the copy points to."""
    made = ffi.new("hpc_exchange_config *", config[0])
    if made.codecs == ffi.NULL:
        return made, None
    n = made.plan.n_keys
    copies = [ffi.NULL if codec == ffi.NULL else ffi.new("hpc_codec_config *", codec[0]) for codec in made.codecs[0:n]]
    for copy in copies:
        if copy != ffi.NULL:
            copy.filter = ffi.NULL
    codecs = ffi.new("const hpc_codec_config *[]", copies)
    made.codecs = codecs
    return made, (copies, codecs)


def description_read(message: bytes, cores: int) -> Any:
    """Reads a description that may hold anything. cores: the most cores of a hub."""
    out = ffi.new("hpc_description **")
    check(lib.hpc_description_read(ffi.from_buffer(message), len(message), cores, out))
    return owned(out[0], lib.hpc_description_free, None)


def description_memory(description: Any, workers: int, hubs: int, far: int, rank: int) -> int:
    """Returns a bound on the bytes that the exchange needs at a hub.

    Args:
        far: the number of workers whose memory the hub does not map.
        rank: the hub's rank, once the plans are made; -1: a hub that has an equal share of the keys.
    """
    return int(lib.hpc_description_memory(description, workers, hubs, far, rank))


description_plan = checking(lib.hpc_description_plan)
description_descriptors: Callable[[Any, int, int, int, int], int] = lib.hpc_description_descriptors


class DescribedKey(NamedTuple):
    """A key of a description.

    Attributes:
        rule: the rule's name, which tells its prox too.
        slots: values of state for each element.
        plan: C's plan of the key's scheme, valid as long as the description; the key is its key `number`.
    """

    name: str
    elements: int
    rule: str
    slots: int
    plan: Any
    number: int


def description_keys(description: Any) -> list[DescribedKey]:
    """Returns the keys of a description in the order of the exchange, once the plans are made."""
    found: list[DescribedKey] = []
    key = ffi.new("hpc_described_key *")
    while lib.hpc_description_key(description, len(found), key) == lib.HPC_OK:
        rule = key.rule
        found.append(DescribedKey(text(key.name), key.count, text(rule.name), rule.slots, key.plan, key.number))
    return found


def description_exchange(description: Any, context: Any, weight: float, timeout: float) -> Any:
    """Makes a hub's end of the exchange."""
    given = description, context, weight
    return collected(lib.hpc_description_exchange, given, "hpc_exchange *", timeout, lib.hpc_exchange_free)
