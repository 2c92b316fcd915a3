"""Codecs of one's own, and filters, in Numba."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Left, on_both, run_threads

import hpcomm
from hpcomm import SGD, Exchange, HpcommError, InvalidArgument, ParameterServer, kernels
from hpcomm.codec import ErrorFeedback, Own, TopK

pytest.importorskip("numba")

F32 = np.float32
N = 3000


def signs(x: Any, state: Any, args: Any, out: Any) -> Any:
    """Of each element its sign, and the mean magnitude; state counts the encodings."""
    total = 0.0
    for i in range(x.size):
        total += abs(x[i])
        state[0, i] += 1
    out[:4].view(np.float32)[0] = args[1] * total / x.size
    out[4:8].view(np.float32)[0] = state[0, 0] - args[0]  # 0, if both count alike
    for i in range(0, x.size, 8):
        byte = 0
        for j in range(i, min(i + 8, x.size)):
            byte |= (1 << (j - i)) if x[j] > 0 else 0
        out[8 + i // 8] = byte
    return 8 + (x.size + 7) // 8


def add_signs(acc: Any, data: Any, weight: Any, args: Any) -> Any:
    if data.size != 8 + (acc.size + 7) // 8:
        return 1
    numbers = data[:8].view(np.float32)
    if numbers[1] != 0:
        return 2
    size = weight * numbers[0]
    for i in range(acc.size):
        acc[i] += size if data[8 + i // 8] >> (i % 8) & 1 else -size
    return 0


def counted(x: Any, state: Any, args: Any, out: Any) -> Any:
    """All elements, times the number of the encoding."""
    values = out[: 4 * x.size].view(np.float32)
    for i in range(x.size):
        values[i] = x[i] * args[0]
    return 4 * x.size


def add_counted(acc: Any, data: Any, weight: Any, args: Any) -> Any:
    if data.size != 4 * acc.size:
        return 1
    values = data.view(np.float32)
    for i in range(acc.size):
        acc[i] += weight * values[i]
    return 0


# Compiled by the tests that need them, as every worker of a run imports this file.
encode_signs = functools.cache(lambda: kernels.encode(signs, slots=1))
decode_signs = functools.cache(lambda: kernels.decode_add(add_signs))
encode_wrong = functools.cache(lambda: kernels.encode(wrong))


def distance(ctx: hpcomm.Context, codec: Any, topology: Any, steps: int = 150) -> tuple[float, float, int]:
    """How far w is from the least of a sum of squares, before and after; and the hash of w."""
    target = np.random.default_rng(5).standard_normal(N).astype(F32)
    with Exchange(
        ctx, {"w": np.zeros(N, F32)}, topology, rule=SGD(lr=0.1), codec=codec, progress="inline", chunk_bytes=4096
    ) as ex:
        for step in range(steps):
            noise = np.random.default_rng([ctx.rank, step]).standard_normal(N).astype(F32)
            ex.push_pull("w", ex.params["w"] - target + F32(0.1) * noise)
        w = ex.params["w"]
        return float(np.linalg.norm(target)), float(np.linalg.norm(w - target)), hash(w.tobytes())


@pytest.mark.some(1)
@on_both
@pytest.mark.parametrize("where", [ParameterServer(), ParameterServer(apply_at="receivers")], ids=["hub", "ucc"])
def test_a_codec_of_ones_own_trains(where: Any) -> None:
    def body(ctx: hpcomm.Context) -> Any:
        return distance(ctx, codec, where)

    codec = Own(encode_signs(), decode_signs(), args={"scale": 1.0})
    assert (codec.title, codec.state_slots) == ("signs", 1)
    every = run_threads(3, body)
    assert len({bits for *_, bits in every}) == 1
    for before, after, _ in every:
        assert after < 0.1 * before


def test_the_codec_of_the_docs_trains() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs/codecs.md").read_text(encoding="utf-8")
    (code,) = (part.split("```")[0] for part in text.split("```python\n") if "def add_signs" in part)
    names: dict[str, Any] = {}
    exec(code[: code.index("ex = ")], names)
    for before, after, _ in run_threads(2, lambda ctx: distance(ctx, names["signs_codec"], ParameterServer())):
        assert after < 0.1 * before


def test_numba_and_c_filter_alike() -> None:
    def body(ctx: hpcomm.Context) -> set[Any]:
        return {distance(ctx, TopK(0.05, kernel=kernel), ParameterServer(), 20) for kernel in ("c", "numba", "auto")}

    assert all(len(found) == 1 for found in run_threads(2, body))


def positive(x: Any, residual: Any, n: Any, delta: Any, values: Any, bits: Any) -> Any:
    """What is larger than delta; what is smaller than minus delta stays."""
    kept = 0
    for j in range(0, n, 8):
        byte = 0
        for i in range(j, min(j + 8, n)):
            u = x[i] + residual[i]
            residual[i] = u
            if u > delta:
                values[kept] = u
                residual[i] = 0
                kept += 1
                byte |= 1 << (i - j)
        bits[j // 8] = byte
    return kept


def test_a_filter_of_ones_own_says_what_is_sent() -> None:
    only_positive = kernels.filter(positive)

    def body(ctx: hpcomm.Context) -> Any:
        with Exchange(
            ctx,
            {"w": np.zeros(100, F32)},
            rule=SGD(lr=1.0),
            codec=hpcomm.codec.Threshold(1.0, decays=False, kernel=only_positive),
            progress="inline",
        ) as ex:
            x = np.where(np.arange(100) % 2 == 0, 3, -3).astype(F32)
            ex.push_pull("w", x)
            shard = ex.state_dict()
            assert np.array_equal(shard["encoders"][:100], np.where(x > 0, 0, x))
            return ex.params["w"].copy()

    for w in run_threads(2, body):
        assert np.array_equal(w, np.where(np.arange(100) % 2 == 0, -3, 0))


def wrong(x: Any, state: Any, args: Any, out: Any) -> Any:
    if args[1] == 1:
        raise ValueError
    if args[1] == 2:
        return out.size + 1
    if args[1] == 3:
        return 3  # which its decoder refuses
    return -5


@pytest.mark.some(2)
@pytest.mark.parametrize("how", range(4))
def test_an_encoder_that_fails_ends_the_exchange_by_its_name(how: int) -> None:
    def body(ctx: hpcomm.Context) -> None:
        codec = Own(encode_wrong(), decode_signs(), title="mine", args=[how])
        ex = Exchange(ctx, {"w": np.zeros(100, F32)}, codec=codec, progress="inline")
        with pytest.raises(HpcommError, match="codec mine cannot encode key w from element 0 on: its encoder failed"):
            ex.push_pull("w", np.ones(100, F32))
        raise Left

    run_threads(1, body)


def slow(x: Any, state: Any, args: Any, out: Any) -> Any:
    """A piece as add_signs reads it, after a hundred nanoseconds an element."""
    y = np.float32(0)
    for i in range(x.size):
        for _ in range(30):
            y = np.sqrt(y * y + x[i] * x[i])
    numbers = out[:8].view(np.float32)
    numbers[0], numbers[1] = y, 0
    out[8 : 8 + (x.size + 7) // 8] = 0
    return 8 + (x.size + 7) // 8


def test_auto_sends_float32_where_a_codec_loses() -> None:
    codec = hpcomm.codec.Auto(Own(kernels.encode(slow), decode_signs()))

    def body(ctx: hpcomm.Context) -> tuple[Any, str]:
        with Exchange(ctx, {"w": np.zeros(8192, F32)}, codec=codec, progress="inline") as ex:
            ex.push_pull("w", np.ones(8192, F32))
            return ex.codecs["w"], ex.stats().codecs["w"].why

    found = run_threads(2, body, transport="tcp")
    assert found[0] == found[1]
    assert found[0][0] == hpcomm.codec.FLOAT32
    assert "MB/s" in found[0][1]


def test_what_cannot_be_a_kernel_is_refused() -> None:
    for slots in (9, True, 1.5):
        with pytest.raises(InvalidArgument, match=f"encode: slots is {slots}: must be an int from 0 to 8"):
            kernels.encode(slots=slots)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="returns nothing: must return the bytes that it wrote"):

        @kernels.encode
        def silent(x: Any, state: Any, args: Any, out: Any) -> None:
            out[0] = 1

    with pytest.raises(InvalidArgument, match="would call the interpreter"):

        @kernels.decode_add
        def prints(acc: Any, data: Any, weight: Any, args: Any) -> None:
            print(acc[0])

    def other(ctx: hpcomm.Context) -> None:
        title = f"codec of {ctx.rank}"
        with pytest.raises(hpcomm.ConfigError, match="the codec of key w is codec of 1 on rank 1"):
            Exchange(
                ctx, {"w": np.zeros(9, F32)}, codec=Own(encode_signs(), decode_signs(), title=title), progress="inline"
            )

    run_threads(2, other)


def test_a_codec_that_keeps_nothing_back_is_saved_without_a_residual() -> None:
    stateless = ErrorFeedback(Own(kernels.encode(counted), kernels.decode_add(add_counted)), on=False)
    counts = ErrorFeedback(Own(encode_signs(), decode_signs(), args={"scale": 1.0}), on=False)

    def body(ctx: hpcomm.Context) -> None:
        def exchange() -> Exchange:
            start = {"w": np.zeros(N, F32), "v": np.zeros(N, F32)}
            return Exchange(ctx, start, rule=SGD(lr=0.5), codec={"w": stateless, "v": counts}, progress="inline")

        def step(ex: Exchange, number: int) -> None:
            rng = np.random.default_rng([ctx.rank, number])
            ex.step({name: rng.standard_normal(N).astype(F32) for name in ("w", "v")})

        with exchange() as ex, exchange() as other:
            for number in range(3):
                step(ex, number)
            saved = ex.state_dict()
            sizes = dict(zip(saved["encoder_key"].tolist(), saved["encoder_values"].tolist(), strict=True))
            assert sizes == {0: 2, 1: 2 * N + 2}  # no values of w; of v a state, behind zeros
            assert not saved["encoders"][2 : 2 + N].any()
            other.load_state_dict(saved)
            for each in (ex, other):
                step(each, 3)
            for name in ("w", "v"):
                assert ex.params[name].tobytes() == other.params[name].tobytes()

    run_threads(2, body)
