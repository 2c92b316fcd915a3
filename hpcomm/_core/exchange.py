"""Exchanges: the calls of a step, their counts, and the rows that owners keep."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _fast
from .._ffi import ffi, lib
from .handle import collected, collective
from .memory import address_of, from_buffer, mapped, memory_of, new_word
from .status import NULL, check, text, wait

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


def spare_cores(context: Any, workers: tuple[int, ...], servers: tuple[int, ...]) -> int:
    """Cores that each of these servers can have for its own threads, beside the threads that workers compute with; the
    same number on all ranks."""
    return int(lib.hpc_spare_cores(context, workers, len(workers), servers, len(servers)))


def interfaces(context: Any, servers: tuple[int, ...]) -> int:
    """NICs that each of these servers can use, 1 at least; the same number on all ranks."""
    return int(lib.hpc_interfaces(context, servers, len(servers)))


def over_sockets(context: Any, ranks: tuple[int, ...]) -> bool:
    """Whether two of these ranks are joined by sockets; the same on all ranks."""
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
    """One configuration of an exchange, and the objects that it points to. codecs: by key, the result of codec_config,
    None for an array of a dtype; empty if all keys are arrays."""
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
    """The handle of an exchange of these configurations, whose keys follow one another. It keeps `keep`, its rules and
    codecs with their code, until it is freed."""
    for (config, _), (following, _) in pairwise(configs):
        config.next = following

    def create(seconds: float, out: Any) -> int:
        return lib.hpc_exchange_create(context, configs[0][0], seconds, out)

    return collected(create, "hpc_exchange *", timeout, lib.hpc_exchange_free, keep)


def exchange_refuse(context: Any, sentence: str, timeout: float) -> None:
    """The collective of exchange_create by a rank that cannot take part: it fails on every rank, by this sentence."""
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
    """The parameters of every key as arrays of the exchange's memory; none on a rank that is no worker."""
    found = []
    for key, shape in enumerate(shapes):
        at = lib.hpc_exchange_params(exchange, key)
        if at == NULL:
            return []
        memory, address = memory_of(lib.hpc_exchange_memory(exchange, key, at)), address_of(at)
        found.append(mapped([memory], address, shape, np.dtype(np.float32), writable))
    return found


def exchange_takes_writes(exchange: Any, key: int) -> bool:
    return bool(lib.hpc_exchange_takes_writes(exchange, key))


def exchange_params_address(exchange: Any, key: int) -> int:
    return address_of(lib.hpc_exchange_params(exchange, key))


def exchange_gradient_array(
    exchange: Any, key: int, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """The slot at an address that exchange_gradient gave."""
    return mapped(
        [memory_of(lib.hpc_exchange_memory(exchange, key, ffi.cast("void *", address)))], address, shape, dtype, True
    )


def exchange_set_args(exchange: Any, key: int, args: tuple[float, ...]) -> None:
    """The arguments of a key's rule, or of EVERY_KEY's, from this rank's next push of it on."""
    c_args = ffi.new("double[]", lib.HPC_RULE_ARGS)
    c_args[1 : 1 + len(args)] = args
    check(lib.hpc_exchange_set_args(exchange, key, c_args))


def exchange_get_args(exchange: Any, key: int, n: int) -> tuple[float, ...]:
    """The first n arguments of a key's rule, of this rank's next push; on a rank that only serves, of the last one."""
    c_args = ffi.new("double[]", lib.HPC_RULE_ARGS)
    check(lib.hpc_exchange_get_args(exchange, key, c_args))
    return tuple(c_args[1 : 1 + n])


def _ticket(call: Any, *args: Any) -> int:
    """The ticket that a call of C gives, or a negative status; so return those below."""
    ticket = new_word()
    return int(call(*args, ticket)) or int(ticket[0])


def exchange_fold_nothing(exchange: Any, key: int, seconds: float) -> int:
    return _ticket(lib.hpc_exchange_fold_nothing, exchange, key, seconds)


def exchange_apply(exchange: Any, key: int, scale: float, seconds: float) -> int:
    return _ticket(lib.hpc_exchange_apply, exchange, key, scale, seconds)


def exchange_set_unit(exchange: Any, key: int, unit: float) -> None:
    check(lib.hpc_exchange_set_unit(exchange, key, unit))


def exchange_skip(exchange: Any, key: int, seconds: float) -> int:
    return _ticket(lib.hpc_exchange_skip, exchange, key, seconds)


def exchange_gather(exchange: Any, key: int, seconds: float) -> int:
    return _ticket(lib.hpc_exchange_gather, exchange, key, seconds)


def exchange_squares(exchange: Any, key: int, seconds: float) -> int:
    return _ticket(lib.hpc_exchange_squares, exchange, key, seconds)


def exchange_gathered(exchange: Any, key: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The array into which a gather of a key puts the mean."""
    at = lib.hpc_exchange_gathered(exchange, key)
    memory = memory_of(lib.hpc_exchange_memory(exchange, key, at))
    return mapped([memory], address_of(at), shape, np.dtype(np.float32), True)


def exchange_get_squares(exchange: Any, key: int) -> float:
    """The result of the last squares that has ended."""
    sum_of = ffi.new("double *")
    check(lib.hpc_exchange_get_squares(exchange, key, sum_of))
    return float(sum_of[0])


def exchange_under_way(exchange: Any) -> int:
    """The number of a key whose push or pull by this rank is pending; -1: no key."""
    return int(lib.hpc_exchange_under_way(exchange))


def exchange_get_row(exchange: Any, row: int, params: NDArray[np.float32], state: NDArray[np.float32]) -> int:
    """The step of a row; params and state are filled."""
    step = new_word()
    into = from_buffer("float[]", params), from_buffer("float[]", state)
    check(lib.hpc_exchange_get_row(exchange, row, step, *into))
    return int(step[0])


def exchange_row_step(exchange: Any, row: int) -> int:
    step = new_word()
    check(lib.hpc_exchange_get_row(exchange, row, step, NULL, NULL))
    return int(step[0])


def exchange_folded(exchange: Any, rank: int) -> int:
    """ASYNC and SSP with servers: of how many pushes of a rank the rows here have folded all or a part."""
    word = new_word()
    check(lib.hpc_exchange_get_folded(exchange, rank, word))
    return int(word[0])


def exchange_heard(exchange: Any, rows: int) -> NDArray[np.int64]:
    """By row of the plan: how new this rank's copy of its elements is; -1: it has none."""
    heard = np.empty(rows, np.int64)
    check(lib.hpc_exchange_get_heard(exchange, from_buffer("uint64_t[]", heard), rows))
    return heard


def exchange_pushed(exchange: Any, key: int, values: NDArray[np.float32] | None) -> int:
    """How often this rank has begun to push a key; values gets the sum of the pieces of its last push."""
    return _sent(exchange, key, -1, values)


def exchange_forwarded(exchange: Any, row: int, values: NDArray[np.float32] | None) -> int:
    """How often a row of this rank was folded; values gets the piece that it has forwarded last."""
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


def exchange_publish(exchange: Any, timeout: float) -> None:
    collective(lambda seconds: lib.hpc_exchange_publish(exchange, seconds), timeout)


def exchange_settle(exchange: Any, timeout: float) -> None:
    """Waits until the owners have applied all pushes of this rank."""
    wait(lambda seconds: lib.hpc_exchange_settle(exchange, seconds), timeout)


def exchange_together(exchange: Any, together: bool) -> None:
    check(lib.hpc_exchange_together(exchange, together))


def exchange_progress(exchange: Any) -> None:
    check(lib.hpc_exchange_progress(exchange))


def exchange_serve(exchange: Any, timeout: float) -> None:
    wait(lambda seconds: lib.hpc_exchange_serve(exchange, seconds), timeout)


def exchange_close(exchange: Any, timeout: float) -> None:
    wait(lambda seconds: lib.hpc_exchange_close(exchange, seconds), timeout)


def exchange_stats(exchange: Any) -> dict[str, Any]:
    stats = ffi.new("hpc_exchange_stats *")
    check(lib.hpc_exchange_get_stats(exchange, stats))
    return {name: getattr(stats, name) for name, _ in ffi.typeof("hpc_exchange_stats").fields}


def exchange_get_progress(exchange: Any) -> str:
    """Who works for this rank's cores, and why, in words."""
    words = ffi.new("char[]", 1024)
    check(lib.hpc_exchange_get_progress(exchange, words, len(words)))
    return text(words)


def exchange_late(exchange: Any, key: int) -> int:
    """Shares of the last push of a key, or of all (-1), that came too late and were left out."""
    return int(lib.hpc_exchange_late(exchange, key))


def exchange_version(exchange: Any) -> int:
    return int(lib.hpc_exchange_version(exchange, -1))


def exchange_version_of(exchange: Any, key: int) -> int:
    return int(lib.hpc_exchange_version(exchange, key))


def exchange_inputs(exchange: Any) -> tuple[int, ...]:
    """Reduces by how many whole inputs of neighbours they had, on a graph."""
    most = lib.hpc_exchange_get_histogram(exchange, lib.HPC_FOLDS_BY_INPUTS, ffi.NULL, 0)
    counts = ffi.new("uint64_t[]", most + 1)
    check(min(0, lib.hpc_exchange_get_histogram(exchange, lib.HPC_FOLDS_BY_INPUTS, counts, most + 1)))
    return tuple(counts)


def exchange_staleness(exchange: Any) -> tuple[int, ...]:
    """Steps by how far the slowest worker was behind when they began, under SSP with servers of one stage."""
    most = lib.hpc_exchange_get_histogram(exchange, lib.HPC_STEPS_BY_STALENESS, ffi.NULL, 0)
    if most == 0:
        return ()
    counts = ffi.new("uint64_t[]", most + 1)
    check(min(0, lib.hpc_exchange_get_histogram(exchange, lib.HPC_STEPS_BY_STALENESS, counts, most + 1)))
    return tuple(counts)


_STAGES = {
    lib.HPC_TRAFFIC_PUSH: "push",
    lib.HPC_TRAFFIC_FORWARD: "forward",
    lib.HPC_TRAFFIC_RELAY: "relay",
    lib.HPC_TRAFFIC_PARAMETERS: "parameters",
}


def exchange_traffic(exchange: Any, size: int) -> list[tuple[int, str, str, int]]:
    """hpc_traffic: rank, stage, wire and bytes."""
    most = size * len(_STAGES)
    found = ffi.new("hpc_traffic[]", most)
    n = lib.hpc_exchange_get_traffic(exchange, found, most)
    check(min(0, n))
    return [(t.rank, _STAGES[t.stage], ffi.string(t.wire).decode(), t.bytes) for t in found[0:n]]


def exchange_peers(exchange: Any, size: int) -> list[dict[str, Any]]:
    """hpc_exchange_peer of every rank."""
    peer, found = ffi.new("hpc_exchange_peer *"), []
    names = [name for name, _ in ffi.typeof("hpc_exchange_peer").fields]
    for rank in range(size):
        check(lib.hpc_exchange_get_peer(exchange, rank, peer))
        found.append({name: getattr(peer, name) for name in names})
    return found
