"""Cases of hpcomm.torch with parameters on a CUDA device. Each rank of a job of torchrun runs them all: the model has
the weights of plain torch on the same device with the whole batch, up to rounding, and all ranks have the same bits."""

import hashlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import hpcomm
import hpcomm.torch as ht

ROWS = 6


def net(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(3)
    layers = [nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 4)]
    return nn.Sequential(*layers).to("cuda", dtype)


def momentum(params: Any) -> Any:
    return torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=1e-3)


def batches(ctx: Any, steps: int) -> Any:
    random = torch.Generator().manual_seed(5)
    for _ in range(steps):
        n = ctx.size * ROWS
        x, y = torch.randn(n, 10, generator=random), torch.randint(0, 4, (n,), generator=random)
        yield x.to("cuda"), y.to("cuda")


def train(
    ctx: Any, make: Any = momentum, dtype: Any = torch.float32, steps: int = 6, **options: Any
) -> tuple[Any, Any]:
    ours, alone = net(dtype), net(dtype)
    optimizer, plain = ht.DistributedOptimizer(make(ours.parameters()), ctx, ours, **options), make(alone.parameters())
    mine = slice(ctx.rank * ROWS, (ctx.rank + 1) * ROWS)
    for x, y in batches(ctx, steps):
        for model, own, part in ((ours, optimizer, mine), (alone, plain, slice(None))):
            own.zero_grad()
            F.cross_entropy(model(x[part].to(dtype)).float(), y[part]).backward()
            if own is plain and "clip_norm" in options:
                nn.utils.clip_grad_norm_(alone.parameters(), options["clip_norm"])
            own.step()
    optimizer.wait()
    counts = optimizer.stats()
    optimizer.close()
    same_bits(ctx, ours)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    for p, q in zip(ours.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)
    return ours, counts


def same_bits(ctx: Any, model: Any) -> None:
    found = hashlib.sha256()
    for p in model.parameters():
        found.update(p.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    assert len(set(ctx.allgather(found.digest()))) == 1, "ranks differ"


def rules(ctx: Any) -> None:
    for make in (momentum, lambda p: torch.optim.Adam(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)):
        _, counts = train(ctx, make)
        assert counts.bytes_out == counts.bytes_in > 0
        assert counts.seconds_out > 0
        assert counts.seconds_in > 0
        assert 0 <= counts.hidden <= 1


def overlap(ctx: Any) -> None:
    train(ctx, overlap=True)
    train(ctx, apply="backward", overlap=True)
    train(ctx, apply="backward")
    train(ctx, apply="after")


def options(ctx: Any) -> None:
    train(ctx, clip_norm=0.1)
    train(ctx, lambda p: torch.optim.Adagrad(p, lr=0.1))
    train(ctx, progress="thread")


def pairs_of_vectors(ctx: Any) -> None:
    train(ctx, way="factors")
    train(ctx, way="adam", batch=ROWS)
    train(ctx, way="factors", batch=ROWS, skip_weight_grad=True, clip_norm=0.1)
    model = net()
    optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model, way="factors", batch=ROWS)
    before = optimizer.ways.of["2.weight"]
    for x, y in batches(ctx, 2):
        optimizer.zero_grad()
        (F.cross_entropy(model(x[:ROWS]), y[:ROWS]) + 0.01 * model[2].weight.pow(2).sum()).backward()
        optimizer.step()
    assert (before, optimizer.ways.of["2.weight"]) == ("factors" if ctx.size > 1 else "ps", "ps")
    optimizer.close()
    same_bits(ctx, model)


def sixteen_bits(ctx: Any) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        train(ctx, dtype=dtype)


def scaler(ctx: Any) -> None:
    model = net()
    optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
    scaling = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=100)
    for step, (x, y) in enumerate(batches(ctx, 4)):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        if step == 2 and ctx.rank == ctx.size - 1:
            loss = loss * float("inf")
        scaling.scale(loss).backward()
        scaling.step(optimizer)
        scaling.update()
    assert optimizer.stats().skipped == 1
    optimizer.close()
    same_bits(ctx, model)


def restored(ctx: Any) -> None:
    with tempfile.TemporaryDirectory() as own:
        folder = Path(ctx.allgather(own.encode().ljust(200))[0].decode().strip())
        found = []
        for resumed in (False, True):
            model = net()
            optimizer = ht.DistributedOptimizer(momentum(model.parameters()), ctx, model)
            first = ht.restore(optimizer, folder).step if resumed else 0  # type: ignore[union-attr]
            with ht.ModelCheckpointer(optimizer, folder, every=3) as saver:
                for step, (x, y) in enumerate(batches(ctx, 5)):
                    if step >= first:
                        optimizer.zero_grad()
                        F.cross_entropy(model(x), y).backward()
                        optimizer.step()
                        if not resumed:
                            saver.after(step + 1)
            optimizer.close()
            found.append([p.detach().clone() for p in model.parameters()])
        assert all(torch.equal(p, q) for p, q in zip(*found, strict=True))
        ctx.barrier()


def local_steps(ctx: Any) -> None:
    model = net()
    optimizer = ht.DiLoCo(momentum(model.parameters()), ctx, model, every=3, delay=1)
    for x, y in batches(ctx, 8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.sync()
    same_bits(ctx, model)
    optimizer.close()


def many_steps_ahead(ctx: Any) -> None:
    """The host is far ahead of the device, which computes for a while before each gradient."""
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).to("cuda")
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-1, 2, p.shape))
    want: list[Any] = [p.detach().clone() for p in model.parameters()]
    optimizer = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), ctx, model, overlap=True)
    for step in range(1, 6):
        optimizer.zero_grad()
        torch.cuda._sleep(20_000_000)
        sum((p * (step * (ctx.rank + 1))).sum() for p in model.parameters()).backward()
        optimizer.step()
        optimizer.wait()
        mean = step * (ctx.size + 1) / 2
        for value in want:
            value.sub_(mean)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), want, strict=True))
    optimizer.close()


CASES: list[Callable[[Any], None]] = [
    rules, overlap, options, pairs_of_vectors, sixteen_bits, scaler, restored, local_steps, many_steps_ahead,
]  # fmt: skip


def main() -> int:
    told = {}
    torch.set_num_threads(1)
    for case in CASES:
        try:
            with hpcomm.init(timeout=30) as ctx:
                case(ctx)
            told[case.__name__] = ""
        except Exception:
            told[case.__name__] = traceback.format_exc()
    if os.environ["RANK"] == "0":
        Path(sys.argv[1]).write_text(json.dumps(told, indent=1), encoding="utf-8")
    for name, wrong in told.items():
        print(f"rank {os.environ['RANK']}: {name}: {wrong or 'passed'}", flush=True)
    return int(any(told.values()))


if __name__ == "__main__":
    sys.exit(main())
