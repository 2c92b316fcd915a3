"""The types of options. mypy tests the calls in right and wrong, which nothing runs: it refuses comments that ignore no
error."""

import sysconfig
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from language_server import LanguageServer

import hpcomm
from hpcomm import _core
from hpcomm.config import Config, Settings
from hpcomm.exchange.options import EngineOptions, Keywords, PlanOptions, Progress


def right(optimizer: Any, model: Any, params: dict[str, Any]) -> None:
    import hpcomm.torch as ht  # noqa: PLC0415 - torch may be missing

    ctx = hpcomm.init(timeout=10, transport="shm", overlap=True)
    hpcomm.parameter_hub(ctx, params, placement="CS", consistency=hpcomm.ASYNC, codec="float16", progress="inline")
    hpcomm.broadcast(ctx, params, plan=PlanOptions(codec_out="bfloat16"), timeout=3.0)
    hpcomm.stochastic_reduce(ctx, params, in_place=True, depth=3)
    ht.DistributedOptimizer(
        optimizer, ctx, model, apply="backward", buffers="average", plan=PlanOptions(chunk_bytes=4096), servers=2
    )


def wrong(optimizer: Any, model: Any, params: dict[str, Any]) -> None:
    import hpcomm.torch as ht  # noqa: PLC0415

    ctx = hpcomm.init(timeuot=10)  # type: ignore[call-arg]
    hpcomm.init(tcp_streams="two")  # type: ignore[arg-type]
    hpcomm.parameter_hub(ctx, params, chunk_byts=4096)  # type: ignore[call-arg]
    hpcomm.parameter_hub(ctx, params, progress="threads")  # type: ignore[arg-type]
    hpcomm.parameter_hub(ctx, params, reduce="max")  # type: ignore[arg-type]
    hpcomm.broadcast(ctx, params, depth="1")  # type: ignore[arg-type]
    hpcomm.stochastic_reduce(ctx, params, inplace=True)  # type: ignore[call-arg]
    ht.DistributedOptimizer(optimizer, ctx, model, apply="backwards")  # type: ignore[arg-type]
    ht.DistributedOptimizer(optimizer, ctx, model, buffers="mean")  # type: ignore[arg-type]
    ht.DistributedOptimizer(optimizer, ctx, model, chunks=3)  # type: ignore[call-arg]


def test_types_name_what_is_taken() -> None:
    assert set(get_type_hints(Settings)) == {field.name for field in fields(Config)}
    taken = {field.name for options in (PlanOptions, EngineOptions) for field in fields(options)}
    assert set(get_type_hints(Keywords)) < taken
    assert set(get_args(Progress)) == set(_core.PROGRESS)


def test_an_editor_offers_options_and_their_words() -> None:
    begin = "import hpcomm\nimport hpcomm.torch as ht\nctx = hpcomm.init()\n"
    with LanguageServer([str(Path(sysconfig.get_path("scripts"), "pyrefly")), "lsp"]) as server:
        assert {"timeout=", "look_after=", "overlap="} <= server.completions(f"{begin}hpcomm.init(")
        assert {"chunk_bytes=", "codec=", "progress="} <= server.completions(f"{begin}hpcomm.parameter_hub(ctx, {{}}, ")
        assert {"in_place=", "depth="} <= server.completions(f"{begin}hpcomm.stochastic_reduce(ctx, {{}}, ")
        assert {"overlap=", "servers="} <= server.completions(f"{begin}ht.DistributedOptimizer(None, ctx, None, ")
        words = server.completions(f'{begin}hpcomm.parameter_hub(ctx, {{}}, progress="')
        assert {"auto", "inline", "thread"} <= {word.strip("'") for word in words}
