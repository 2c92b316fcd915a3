from collections.abc import Callable, Sized

def put(lane: int, window: int, peer: int, src: object, offset: int, /) -> int: ...
def put_signal(lane: int, window: int, peer: int, src: object, offset: int, signal: int, value: int, /) -> int: ...
def test_signal(window: int, signal: int, at_least: int, /) -> int: ...
def wait_signal(window: int, signal: int, at_least: int, peer: int, timeout: float, /) -> int: ...
def exchange_gradient(exchange: int, key: int, keep: bool, timeout: float, /) -> int: ...
def exchange_start(
    exchange: int, key: int, flags: int, src: object, nbytes: int, keep: bool, timeout: float, /
) -> int: ...
def exchange_call(
    exchange: int, key: int, flags: int, src: object, nbytes: int, keep: bool, timeout: float, /
) -> int: ...
def exchange_test(exchange: int, key: int, ticket: int, keep: bool, /) -> int: ...
def exchange_wait(exchange: int, key: int, ticket: int, keep: bool, timeout: float, /) -> int: ...
def exchange_ready(exchange: int, keys: object, /) -> int: ...
def exchange_step(
    exchange: int, keys: object, words: object, sources: object, sizes: object, keep: bool, timeout: float, /
) -> int: ...
def caller(
    context: int,
    timeout: float,
    ndarray: type,
    error: Callable[[int], BaseException],
    started: Sized,
    messages: Sized,
    cuts: list[tuple[int, type[BaseException]]],
    ops: tuple[str, ...],
    /,
) -> tuple[Callable[..., bool], Callable[..., bool], Callable[..., int | None]]: ...
def collective_at(
    context: int,
    what: int,
    kind: int,
    op: int,
    root: int,
    send: int,
    recv: int,
    count: int,
    send_counts: object,
    recv_counts: object,
    nbytes: int,
    timeout: float,
    /,
) -> int: ...
