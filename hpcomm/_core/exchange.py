"""Binds exchanges: the calls of a step, their counts, and the rows that owners keep."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _fast
from .._ffi import ffi, lib
from .handle import collected, collecting, collective
from .memory import address_of, from_buffer, mapped, members, memory_of, new_word
from .status import NULL, check, checking, text, waiting

EVERY_KEY = -1
PUSH: int = lib.HPC_PUSH
PULL: int = lib.HPC_PULL
PUSH_PULL: int = lib.HPC_PUSH | lib.HPC_PULL
MOST_THREADS: int = lib.HPC_MOST_THREADS
CONSISTENCIES: dict[str, int] = {
    "BSP": lib.HPC_BSP,
    "ASYNC": lib.HPC_ASYNC,
    "NOTIFY_ACK": lib.HPC_NOTIFY_ACK,
    "SSP": lib.HPC_SSP,
    "BARRIER": lib.HPC_BARRIER,
}
PROGRESS: dict[str, int] = {
    "auto": lib.HPC_PROGRESS_AUTO,
    "inline": lib.HPC_PROGRESS_INLINE,
    "thread": lib.HPC_PROGRESS_THREAD,
}

exchange_gradient = _fast.exchange_gradient  # these take a handle by address_of
exchange_start = _fast.exchange_start
exchange_call = _fast.exchange_call
exchange_test = _fast.exchange_test
exchange_wait = _fast.exchange_wait
exchange_ready = _fast.exchange_ready
exchange_step = _fast.exchange_step

exchange_under_way: Callable[[Any], int] = lib.hpc_exchange_under_way  # a key with a pending push or pull, or -1
exchange_late: Callable[[Any, int], int] = lib.hpc_exchange_late  # number of late shares of the last push
exchange_version_of: Callable[[Any, int], int] = lib.hpc_exchange_version
exchange_set_unit = checking(lib.hpc_exchange_set_unit)
exchange_together = checking(lib.hpc_exchange_together)
exchange_progress = checking(lib.hpc_exchange_progress)
exchange_settle = waiting(lib.hpc_exchange_settle)  # waits until the owners have applied all pushes of this rank
exchange_serve = waiting(lib.hpc_exchange_serve)
exchange_close = waiting(lib.hpc_exchange_close)
exchange_publish = collecting(lib.hpc_exchange_publish)


def _ticket(call: Any) -> Callable[..., int]:
    """Wraps a C call into a function that returns its ticket, or a negative status."""

    def function(*args: Any) -> int:
        ticket = new_word()
        return int(call(*args, ticket)) or int(ticket[0])

    return function


exchange_fold_nothing = _ticket(lib.hpc_exchange_fold_nothing)
exchange_apply = _ticket(lib.hpc_exchange_apply)
exchange_skip = _ticket(lib.hpc_exchange_skip)
exchange_gather = _ticket(lib.hpc_exchange_gather)
exchange_squares = _ticket(lib.hpc_exchange_squares)


def spare_cores(context: Any, workers: tuple[int, ...], servers: tuple[int, ...]) -> int:
    """Returns how many cores of each server the workers leave free; all ranks get the same number."""
    return lib.hpc_spare_cores(context, workers, len(workers), servers, len(servers))


def interfaces(context: Any, servers: tuple[int, ...]) -> int:
    """Returns how many NICs each server can use, at least 1; all ranks get the same number."""
    return lib.hpc_interfaces(context, servers, len(servers))


def over_sockets(context: Any, ranks: tuple[int, ...]) -> bool:
    """Returns whether some two of these ranks are connected by sockets only; all ranks get the same answer."""
    return bool(lib.hpc_over_sockets(context, ranks, len(ranks)))


def exchange_config(
    *,
    plan: Any,
    rules: list[Any],
    values: list[NDArray[np.float32]],
    consistency: int,
    staleness: int,
    quorum: int,
    grace: float,
    patience: float,
    weight: float,
    graph: Any,
    progress: int,
    threads: int,
    shared_params: bool,
    in_place: bool,
    check_finite: bool,
    split: bool,
    isa: int,
    codecs: list[Any],
) -> tuple[Any, object]:
    """Makes one configuration of an exchange. Returns it with the objects that it points to.

    codecs has a codec_config for each key; None for a key that travels as an array of its dtype. [] if all keys do.
    """
    buffers = [from_buffer("float[]", array) for array in values]
    c_values = ffi.new("const float *[]", buffers)
    config = _exchange_config()
    c_rules = ffi.new("const hpc_rule *[]", rules)
    config.plan, config.rules, config.values = plan, c_rules, c_values
    config.consistency, config.progress, config.isa = consistency, progress, isa
    config.threads = threads
    config.shared_params, config.check_finite = shared_params, check_finite
    config.graph, config.staleness, config.in_place = graph or ffi.NULL, staleness, in_place
    config.quorum, config.grace, config.patience, config.split = quorum, grace, patience, split
    config.weight = weight
    c_codecs = ffi.new("const hpc_codec_config *[]", [codec or ffi.NULL for codec in codecs])
    config.codecs = c_codecs if codecs else ffi.NULL
    return config, (plan, rules, c_rules, buffers, c_values, graph, codecs, c_codecs)


def exchange_create(context: Any, timeout: float, keep: object, configs: list[tuple[Any, object]]) -> Any:
    """Creates an exchange of these configurations; their keys are numbered one configuration after the other. keep:
    rules and codecs that must live as long as the exchange."""
    given = context, chained([config for config, _ in configs])
    return collected(lib.hpc_exchange_create, given, "hpc_exchange *", timeout, lib.hpc_exchange_free, keep)


def chained(configs: list[Any]) -> Any:
    """Links each configuration to the next one; returns the first."""
    for config, following in pairwise(configs):
        config.next = following
    return configs[0]


def exchange_refuse(context: Any, sentence: str, timeout: float) -> None:
    """Takes part in exchange_create for a rank that cannot join; the call fails on every rank with this text."""
    refusal = ffi.new("char[]", sentence.encode("utf-8", "replace"))
    config = _exchange_config()
    config.refusal = refusal
    out = ffi.new("hpc_exchange **")
    collective(lambda seconds: lib.hpc_exchange_create(context, config, seconds, out), timeout)


def exchange_accept(context: Any, timeout: float) -> None:
    """Takes part in other ranks' exchange_refuse, before this rank creates the exchange."""
    collective(lambda seconds: lib.hpc_exchange_create(context, NULL, seconds, NULL), timeout)


def _exchange_config() -> Any:
    config = ffi.new("hpc_exchange_config *")
    lib.hpc_exchange_config_init(config)
    return config


def exchange_params(exchange: Any, shapes: list[tuple[int, ...]], writable: bool) -> list[NDArray[Any]]:
    """Returns the parameters of every key as arrays in the exchange's memory; [] on a rank that is no worker."""
    found = []
    for key, shape in enumerate(shapes):
        at = lib.hpc_exchange_params(exchange, key)
        if at == NULL:
            return []
        found.append(_array(exchange, key, at, shape, np.dtype(np.float32), writable))
    return found


def _array(
    exchange: Any, key: int, at: Any, shape: tuple[int, ...], dtype: np.dtype[Any], writable: bool = True
) -> NDArray[Any]:
    return mapped([memory_of(lib.hpc_exchange_memory(exchange, key, at))], address_of(at), shape, dtype, writable)


def exchange_key_facts(exchange: Any, key: int) -> tuple[int, ...]:
    """Returns the members of a key's hpc_key_facts, in their order."""
    facts = ffi.new("hpc_key_facts *")
    check(lib.hpc_exchange_get_key_facts(exchange, key, facts))
    return tuple(getattr(facts, name) for name, _ in ffi.typeof("hpc_key_facts").fields)


def exchange_params_address(exchange: Any, key: int) -> int:
    return address_of(lib.hpc_exchange_params(exchange, key))


def exchange_gradient_array(
    exchange: Any, key: int, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Returns the array of a slot; address is from exchange_gradient."""
    return _array(exchange, key, ffi.cast("void *", address), shape, dtype)


def exchange_set_args(exchange: Any, key: int, args: tuple[float, ...]) -> None:
    """Sets the arguments of the rule of a key, or of EVERY_KEY, from this rank's next push on."""
    c_args = ffi.new("double[]", lib.HPC_RULE_ARGS)
    c_args[1 : 1 + len(args)] = args
    check(lib.hpc_exchange_set_args(exchange, key, c_args))


def exchange_get_args(exchange: Any, key: int, n: int) -> tuple[float, ...]:
    """Returns the first n arguments of a key's rule: for a worker's next push, or of the last push on a rank that only
    serves."""
    c_args = ffi.new("double[]", lib.HPC_RULE_ARGS)
    check(lib.hpc_exchange_get_args(exchange, key, c_args))
    return tuple(c_args[1 : 1 + n])


def exchange_gathered(exchange: Any, key: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns the array into which a gather of the key writes the mean."""
    return _array(exchange, key, lib.hpc_exchange_gathered(exchange, key), shape, np.dtype(np.float32))


def exchange_get_squares(exchange: Any, key: int) -> float:
    """Returns the result of the last exchange_squares call of the key that has ended."""
    sum_of = ffi.new("double *")
    check(lib.hpc_exchange_get_squares(exchange, key, sum_of))
    return float(sum_of[0])


def exchange_get_row(exchange: Any, row: int, params: NDArray[np.float32], state: NDArray[np.float32]) -> int:
    """Reads a row's parameters and state into the arrays, and returns the row's step."""
    step = new_word()
    into = from_buffer("float[]", params), from_buffer("float[]", state)
    check(lib.hpc_exchange_get_row(exchange, row, step, *into))
    return int(step[0])


def exchange_row_step(exchange: Any, row: int) -> int:
    step = new_word()
    check(lib.hpc_exchange_get_row(exchange, row, step, NULL, NULL))
    return int(step[0])


def exchange_folded(exchange: Any, rank: int) -> int:
    """Returns how many pushes of a rank this rank's rows have folded, wholly or partly (ASYNC and SSP with servers)."""
    word = new_word()
    check(lib.hpc_exchange_get_folded(exchange, rank, word))
    return int(word[0])


def exchange_heard(exchange: Any, rows: int) -> NDArray[np.int64]:
    """Returns, for each row of the plan, the version of this worker's copy; -1 if the worker has no copy of the row."""
    heard = np.empty(rows, np.int64)
    check(lib.hpc_exchange_get_heard(exchange, from_buffer("uint64_t[]", heard), rows))
    return heard


def exchange_pushed(exchange: Any, key: int, values: NDArray[np.float32] | None) -> int:
    """Returns how many pushes of a key this rank has begun; values gets the sum of the last push's pieces."""
    return _sent(exchange, key, -1, values)


def exchange_forwarded(exchange: Any, row: int, values: NDArray[np.float32] | None) -> int:
    """Returns how often a row of this rank was folded; values gets the piece that it forwarded last."""
    return _sent(exchange, 0, row, values)


def _sent(exchange: Any, key: int, row: int, values: NDArray[np.float32] | None) -> int:
    count = new_word()
    into = NULL if values is None else from_buffer("float[]", values)
    check(lib.hpc_exchange_get_sent(exchange, key, row, count, into))
    return int(count[0])


def exchange_set_row(
    exchange: Any, row: int, step: int, params: NDArray[np.float32], state: NDArray[np.float32]
) -> None:
    values = from_buffer("float[]", params), from_buffer("float[]", state)
    check(lib.hpc_exchange_set_row(exchange, row, step, *values))


def exchange_stats(exchange: Any) -> dict[str, Any]:
    stats = ffi.new("hpc_exchange_stats *")
    check(lib.hpc_exchange_get_stats(exchange, stats))
    return members(stats)


def exchange_get_progress(exchange: Any) -> str:
    """Returns a text that names the threads of this rank's cores, and the reason for that choice."""
    words = ffi.new("char[]", 1024)
    check(lib.hpc_exchange_get_progress(exchange, words, len(words)))
    return text(words)


def exchange_version(exchange: Any) -> int:
    return exchange_version_of(exchange, EVERY_KEY)


def exchange_inputs(exchange: Any) -> tuple[int, ...]:
    """Returns the number of folds with 0, 1, 2, ... whole inputs; on a graph, or on servers with a quorum."""
    return _histogram(exchange, lib.HPC_FOLDS_BY_INPUTS)


def exchange_staleness(exchange: Any) -> tuple[int, ...]:
    """Returns the number of steps that began with a staleness of 0, 1, 2, ...; () where staleness is not counted."""
    counts = _histogram(exchange, lib.HPC_STEPS_BY_STALENESS)
    return counts if len(counts) > 1 else ()


def _histogram(exchange: Any, which: int) -> tuple[int, ...]:
    most = lib.hpc_exchange_get_histogram(exchange, which, NULL, 0)
    counts = ffi.new("uint64_t[]", most + 1)
    check(min(0, lib.hpc_exchange_get_histogram(exchange, which, counts, most + 1)))
    return tuple(counts)


_STAGES = {
    lib.HPC_TRAFFIC_PUSH: "push",
    lib.HPC_TRAFFIC_FORWARD: "forward",
    lib.HPC_TRAFFIC_RELAY: "relay",
    lib.HPC_TRAFFIC_PARAMETERS: "parameters",
}


def exchange_traffic(exchange: Any, size: int) -> list[tuple[int, str, str, int]]:
    """Returns tuples (rank, stage, wire, bytes): the bytes that this rank sent to each rank in each stage."""
    most = size * len(_STAGES)
    found = ffi.new("hpc_traffic[]", most)
    n = lib.hpc_exchange_get_traffic(exchange, found, most)
    check(min(0, n))
    return [(t.rank, _STAGES[t.stage], ffi.string(t.wire).decode(), t.bytes) for t in found[0:n]]


def exchange_peers(exchange: Any, size: int) -> list[dict[str, Any]]:
    peer, found = ffi.new("hpc_exchange_peer *"), []
    for rank in range(size):
        check(lib.hpc_exchange_get_peer(exchange, rank, peer))
        found.append(members(peer))
    return found
