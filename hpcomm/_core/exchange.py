"""Exchanges: the calls of a step, their counts, and the rows that owners keep."""

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

exchange_under_way: Callable[[Any], int] = lib.hpc_exchange_under_way  # a key with a pending push or pull; -1: no key
exchange_late: Callable[[Any, int], int] = lib.hpc_exchange_late  # shares of the last push of a key; of all: EVERY_KEY
exchange_version_of: Callable[[Any, int], int] = lib.hpc_exchange_version
exchange_set_unit = checking(lib.hpc_exchange_set_unit)
exchange_together = checking(lib.hpc_exchange_together)
exchange_progress = checking(lib.hpc_exchange_progress)
exchange_settle = waiting(lib.hpc_exchange_settle)  # until the owners have applied all pushes of this rank
exchange_serve = waiting(lib.hpc_exchange_serve)
exchange_close = waiting(lib.hpc_exchange_close)
exchange_publish = collecting(lib.hpc_exchange_publish)


def _ticket(call: Any) -> Callable[..., int]:
    """A call of C as a function that gives its ticket, or a negative status."""

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
    """Cores of each server that workers do not compute with; the same number on all ranks."""
    return lib.hpc_spare_cores(context, workers, len(workers), servers, len(servers))


def interfaces(context: Any, servers: tuple[int, ...]) -> int:
    """NICs that each server can use, 1 at least; the same number on all ranks."""
    return lib.hpc_interfaces(context, servers, len(servers))


def over_sockets(context: Any, ranks: tuple[int, ...]) -> bool:
    """Whether sockets connect two of these ranks; the same on all ranks."""
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
    """One configuration of an exchange, and the objects that it points to. codecs: by key, of codec_config; None: an
    array of a dtype; []: all keys are arrays."""
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
    c_codecs = ffi.new("const hpc_codec_config *[]", [codec or ffi.NULL for codec in codecs])
    config.codecs = c_codecs if codecs else ffi.NULL
    return config, (plan, rules, c_rules, buffers, c_values, graph, codecs, c_codecs)


def exchange_create(context: Any, timeout: float, keep: object, configs: list[tuple[Any, object]]) -> Any:
    """An exchange of these configurations, whose keys follow one another. keep: its rules and codecs."""
    for (config, _), (following, _) in pairwise(configs):
        config.next = following
    given = context, configs[0][0]
    return collected(lib.hpc_exchange_create, given, "hpc_exchange *", timeout, lib.hpc_exchange_free, keep)


def exchange_refuse(context: Any, sentence: str, timeout: float) -> None:
    """exchange_create by a rank that cannot take part: fails on every rank, by this sentence."""
    refusal = ffi.new("char[]", sentence.encode("utf-8", "replace"))
    config = _exchange_config()
    config.refusal = refusal
    out = ffi.new("hpc_exchange **")
    collective(lambda seconds: lib.hpc_exchange_create(context, config, seconds, out), timeout)


def exchange_accept(context: Any, timeout: float) -> None:
    """The counterpart of exchange_refuse, before the exchange is made."""
    collective(lambda seconds: lib.hpc_exchange_create(context, NULL, seconds, NULL), timeout)


def _exchange_config() -> Any:
    config = ffi.new("hpc_exchange_config *")
    lib.hpc_exchange_config_init(config)
    return config


def exchange_params(exchange: Any, shapes: list[tuple[int, ...]], writable: bool) -> list[NDArray[Any]]:
    """The parameters of every key in the exchange's memory; none on a rank that is no worker."""
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
    """hpc_key_facts, in the order of its members."""
    facts = ffi.new("hpc_key_facts *")
    check(lib.hpc_exchange_get_key_facts(exchange, key, facts))
    return tuple(getattr(facts, name) for name, _ in ffi.typeof("hpc_key_facts").fields)


def exchange_params_address(exchange: Any, key: int) -> int:
    return address_of(lib.hpc_exchange_params(exchange, key))


def exchange_gradient_array(
    exchange: Any, key: int, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """The slot at an address that exchange_gradient gave."""
    return _array(exchange, key, ffi.cast("void *", address), shape, dtype)


def exchange_set_args(exchange: Any, key: int, args: tuple[float, ...]) -> None:
    """The arguments of a key's or EVERY_KEY's rule, from this rank's next push on."""
    c_args = ffi.new("double[]", lib.HPC_RULE_ARGS)
    c_args[1 : 1 + len(args)] = args
    check(lib.hpc_exchange_set_args(exchange, key, c_args))


def exchange_get_args(exchange: Any, key: int, n: int) -> tuple[float, ...]:
    """The first n arguments of a key's rule: of this rank's next push, or where it only serves of the last one."""
    c_args = ffi.new("double[]", lib.HPC_RULE_ARGS)
    check(lib.hpc_exchange_get_args(exchange, key, c_args))
    return tuple(c_args[1 : 1 + n])


def exchange_gathered(exchange: Any, key: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The array into which a gather of a key puts the mean."""
    return _array(exchange, key, lib.hpc_exchange_gathered(exchange, key), shape, np.dtype(np.float32))


def exchange_get_squares(exchange: Any, key: int) -> float:
    """The result of the last squares that have ended."""
    sum_of = ffi.new("double *")
    check(lib.hpc_exchange_get_squares(exchange, key, sum_of))
    return float(sum_of[0])


def exchange_get_row(exchange: Any, row: int, params: NDArray[np.float32], state: NDArray[np.float32]) -> int:
    """Fills params and state, and returns the step of a row."""
    step = new_word()
    into = from_buffer("float[]", params), from_buffer("float[]", state)
    check(lib.hpc_exchange_get_row(exchange, row, step, *into))
    return int(step[0])


def exchange_row_step(exchange: Any, row: int) -> int:
    step = new_word()
    check(lib.hpc_exchange_get_row(exchange, row, step, NULL, NULL))
    return int(step[0])


def exchange_folded(exchange: Any, rank: int) -> int:
    """ASYNC and SSP with servers: pushes of a rank of which the rows here have folded all or a part."""
    word = new_word()
    check(lib.hpc_exchange_get_folded(exchange, rank, word))
    return int(word[0])


def exchange_heard(exchange: Any, rows: int) -> NDArray[np.int64]:
    """By row of the plan: the version of this rank's copy; -1: it has none."""
    heard = np.empty(rows, np.int64)
    check(lib.hpc_exchange_get_heard(exchange, from_buffer("uint64_t[]", heard), rows))
    return heard


def exchange_pushed(exchange: Any, key: int, values: NDArray[np.float32] | None) -> int:
    """Pushes of a key that this rank has begun; values gets the sum of the last one's pieces."""
    return _sent(exchange, key, -1, values)


def exchange_forwarded(exchange: Any, row: int, values: NDArray[np.float32] | None) -> int:
    """Folds of a row of this rank; values gets the piece that it has forwarded last."""
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
    """The threads that work for this rank's cores, and why, in words."""
    words = ffi.new("char[]", 1024)
    check(lib.hpc_exchange_get_progress(exchange, words, len(words)))
    return text(words)


def exchange_version(exchange: Any) -> int:
    return exchange_version_of(exchange, EVERY_KEY)


def exchange_inputs(exchange: Any) -> tuple[int, ...]:
    """On a graph: reduces by the number of whole inputs that they had."""
    return _histogram(exchange, lib.HPC_FOLDS_BY_INPUTS)


def exchange_staleness(exchange: Any) -> tuple[int, ...]:
    """Under SSP with servers of one stage: steps by the staleness at which they began."""
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
    """Entries of rank, stage, wire and bytes."""
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
