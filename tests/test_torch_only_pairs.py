"""hpcomm.torch with way=: gradients of linear layers that are more than the sum of their pairs."""

import math
from functools import partial
from typing import Any

import pytest
import torchcases as cases
from torch.nn.utils import parametrize, prune
from torchcases import (
    BATCH,
    OPTIMIZERS,
    WAYS,
    Data,
    F,
    case,
    check,
    nn,
    refuses,
    torch,
    wide,
    with_more,
)

import hpcomm
from hpcomm.torch import linear
from hpcomm.torch.only_pairs import is_sum_of_pairs

pytestmark = pytest.mark.xdist_group("group torch pairs")  # one job for all tests


def half_mask(like: Any) -> Any:
    mask = torch.ones_like(like)
    mask[::2, 1::3] = 0
    return mask


def penalized(model: Any, x: Any, step: int) -> Any:
    return 0.01 * model.first.weight.pow(2).sum() if step >= 2 else 0


def slightly_penalized(model: Any, x: Any, step: int) -> Any:
    return 1e-5 * sum(p.pow(2).sum() for p in model.parameters())


def consolidated(model: Any, x: Any, step: int) -> Any:
    """Elastic weight consolidation: nothing at first, as the weight is where it was."""
    if step == 0:
        model.kept = model.first.weight.detach().clone()
    return (model.first.weight - model.kept).pow(2).sum() if step > 0 else 0


def used_again(model: Any, x: Any, step: int) -> Any:
    return F.linear(x, model.first.weight).pow(2).mean() if step >= 2 else 0


def hooked(model: Any, x: Any, step: int) -> Any:
    if step == 2:
        mask = half_mask(model.first.weight)
        model.first.weight.register_hook(lambda grad: grad * mask)
    return 0


def pruned(model: Any, x: Any, step: int) -> Any:
    if step == 2:
        prune.custom_from_mask(model.first, "weight", half_mask(model.first.weight))
    return 0


def penalizes_inputs(model: Any, x: Any, step: int) -> Any:
    """A gradient penalty, whose second derivatives belong to the weights."""
    if step < 2:
        return 0
    inner = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model(inner).pow(2).sum(), inner, create_graph=True)
    return 0.01 * grad.pow(2).mean()


KINDS = (penalized, slightly_penalized, consolidated, used_again, hooked, pruned, penalizes_inputs)


def goes_dense(ctx: hpcomm.Context, loop: Any, ways: Any, **more: Any) -> None:
    for way in ways:
        optimizer = check(ctx, model=wide, loop=loop, **way, **more)
        assert optimizer.ways.of["first.weight"] == "ps", way
        assert optimizer.ways.why["first.weight"], way
        optimizer.step()  # without gradients
        optimizer.close()


@case
def gradients_that_are_more_than_pairs_go_as_matrices(ctx: hpcomm.Context) -> None:
    ways = [WAYS[0], {"way": "factors", "batch": 3 * BATCH}, {"way": "adam", "batch": 3 * BATCH}]
    for i, kind in enumerate(KINDS):
        goes_dense(ctx, with_more(kind), [ways[i % 3]] if kind is not slightly_penalized else ways[:2])
    goes_dense(ctx, with_more(penalized, only=ctx.size - 1), [WAYS[3]], make=OPTIMIZERS["adamw"], overlap=True)


@case
def gradients_by_hand_go_as_matrices(ctx: hpcomm.Context) -> None:
    def by_hand(model: Any, optimizer: Any, data: Data, step: int) -> None:
        if step < 2:
            cases.plain_step(model, optimizer, data, step)
            return
        optimizer.zero_grad()
        for p in model.parameters():
            p.grad = 0.1 * p.detach()
        optimizer.step()

    goes_dense(ctx, by_hand, WAYS[1:3])


@case
def all_find_what_one_rank_refuses_before_a_mean_is_used(ctx: hpcomm.Context) -> None:
    """clip_norm, synchronize and a GradScaler look at means before step applies them."""

    def loop(how: str, model: Any, optimizer: Any, data: Data, step: int, scalers: dict[bool, Any]) -> None:
        scaler = scalers.setdefault(data.ctx is None, torch.amp.GradScaler("cpu", init_scale=64.0))
        optimizer.zero_grad()
        x, y = data.batch()
        loss = F.cross_entropy(model(x), y)
        if data.ctx is None or data.ctx.rank == 0:
            loss = loss + penalized(model, x, step) / (data.size if data.ctx is None else 1)
        if step == 3 and how == "scale":
            loss = loss * torch.inf
        (scaler.scale(loss) if how == "scale" else loss).backward()
        if how == "look" and data.ctx is not None:
            optimizer.synchronize()
        if how == "look" or (how == "clip" and data.ctx is None):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if how == "scale":
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()

    for how, way in (("clip", WAYS[1]), ("look", WAYS[0]), ("scale", WAYS[4]), ("look", WAYS[2])):
        its: Any = partial(loop, how, scalers={})
        goes_dense(ctx, its, [way], **({"clip_norm": 0.5} if how == "clip" else {}))


@case
def skipped_gradients_are_more_than_pairs(ctx: hpcomm.Context) -> None:
    """Autograd tells of a second use; hooks, masks and parametrizations are refused in the forward pass."""
    for kind in (penalized, used_again):
        goes_dense(ctx, with_more(kind), WAYS[2:3])

    def parametrized(model: Any, x: Any, step: int) -> Any:
        if step == 2:
            parametrize.register_parametrization(model.first, "weight", nn.Tanh())
        return 0

    for kind, why in ((hooked, "has got a hook"), (pruned, "is not a plain"), (parametrized, "is not a plain")):
        told = rf"rank {ctx.rank}: 'first.weight' {why}.*: leave out skip_weight_grad, or give way="
        with refuses(told):
            check(ctx, model=wide, loop=with_more(kind), **WAYS[2])


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1.0, 1e12])
@pytest.mark.parametrize(("rows", "m", "n"), [(1, 64, 64), (9, 7, 512), (512, 96, 33)])
def test_a_sum_of_pairs(rows: int, m: int, n: int, scale: float) -> None:
    """Rounding never tells it from the gradient, in whatever order autograd adds; a small part more does."""
    generator = torch.Generator().manual_seed(rows)
    for shift in (0, 3):  # products that cancel, and products of one sign
        u = (torch.randn(rows, m, generator=generator).abs() + shift) * scale
        v = torch.randn(rows, n, generator=generator) + shift
        pairs = [(u[: rows // 2], v[: rows // 2]), (u[rows // 2 :], v[rows // 2 :])]
        grad = u.flip(0).T @ v.flip(0)
        assert all(is_sum_of_pairs(grad, pairs) for _ in range(20))
        more = 1e-4 * float(grad.abs().max()) * math.sqrt(n * rows)
        one, row, whole = torch.zeros_like(grad), torch.zeros_like(grad), torch.ones_like(grad)
        one[m // 2, n // 2], row[-1] = 1, 1 / math.sqrt(n)
        for part in (one, row, whole / math.sqrt(n)) if scale > 1e-20 else ():
            assert sum(is_sum_of_pairs(grad + more * part, pairs) for _ in range(20)) <= 2


def test_a_sum_of_pairs_that_is_not_finite() -> None:
    u, v = torch.ones(3, 4), torch.ones(3, 5)
    for bad in (math.inf, math.nan):
        u[1, 2] = bad
        grad = u.T @ v
        assert is_sum_of_pairs(grad, [(u, v)])
        assert not is_sum_of_pairs(grad.nan_to_num(0, 0, 0), [(u, v)])
        assert not is_sum_of_pairs(grad, [(torch.ones(3, 4), v)])
        assert not is_sum_of_pairs(grad + torch.tensor([1.0, 0, 0, 0])[:, None], [(u, v)])
    assert is_sum_of_pairs(torch.zeros(4, 5), [])
    assert not is_sum_of_pairs(torch.full((4, 5), math.nan), [])


@pytest.mark.parametrize("name", cases.names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * 2


def test_a_gradient_that_torch_rounds_is_told() -> None:
    assert linear._rounded() == ""
    torch.set_float32_matmul_precision("high")
    try:
        assert linear._rounded() == ", or torch.set_float32_matmul_precision('high') rounds it"
    finally:
        torch.set_float32_matmul_precision("highest")
