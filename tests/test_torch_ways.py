"""hpcomm.torch with way=: linear layers that go as pairs of vectors, beside one process with all the data."""

import contextlib
import copy
import math
import re
import time
from functools import partial
from typing import Any, cast
from unittest import mock

import pytest
import torchcases as cases
from told import logs
from torchcases import (
    BATCH,
    OPTIMIZERS,
    WAYS,
    Data,
    F,
    case,
    check,
    check_bits,
    check_same,
    clipped,
    directory,
    everywhere,
    nn,
    refuses,
    torch,
    wide,
    with_more,
)

import hpcomm
import hpcomm.torch as ht
from hpcomm.exchange import Book

pytestmark = pytest.mark.xdist_group("group torch ways")  # one job for all tests

PAIRS = ("first.weight", "second.weight")  # those of wide() that are large enough


def schemes_of(optimizer: Any) -> dict[str, str]:
    return {name: way for name, way in optimizer.ways.of.items() if way != "ps"}


@everywhere
def pairs_take_the_steps_of_one_process(ctx: hpcomm.Context) -> None:
    for way in WAYS:
        for make in OPTIMIZERS.values():
            optimizer = check(ctx, make, model=wide, **way)
            asked = way["way"] if isinstance(way["way"], dict) else dict.fromkeys(PAIRS, way["way"])
            assert schemes_of(optimizer) == (asked if ctx.size > 1 else {})
            optimizer.close()


@everywhere
def the_norm_of_pairs_clips(ctx: hpcomm.Context) -> None:
    for way in WAYS:
        check(ctx, model=wide, loop=clipped, clip_norm=0.5, **way).close()


@everywhere
def a_plain_server_gets_gradients_after_the_backward_pass(ctx: hpcomm.Context) -> None:
    for make in OPTIMIZERS.values():
        check(ctx, make, model=wide, apply="after").close()
    check(ctx, model=wide, apply="after", way="factors", batch=BATCH, loop=clipped, clip_norm=0.5).close()
    model = wide()
    optimizer = ht.DistributedOptimizer(cases.momentum(model.parameters()), ctx, model, apply="after")
    x, y = Data(ctx, ctx.size).batch()
    F.cross_entropy(model(x), y).backward()
    assert not optimizer._mode.begun
    assert optimizer.exchange.stats().pushes == 0
    optimizer.step()
    optimizer.close()
    made = cases.momentum(model.parameters())
    with pytest.raises(hpcomm.NotSupported, match='apply is "after": it needs BSP'):
        ht.DistributedOptimizer(made, ctx, model, apply="after", consistency=hpcomm.SSP(1))


def test_a_compiled_model_names_its_layers_as_before() -> None:
    with hpcomm.init() as ctx:
        model = nn.Module()
        model.add_module("_orig_mod", wide())  # as torch.compile does
        made = cases.momentum(model.parameters())
        ht.DistributedOptimizer(made, ctx, model, way={"_orig_mod.second.weight": "ps"}).close()


@case
def batches_of_all_sizes_take_the_steps_of_one_process(ctx: hpcomm.Context) -> None:
    """eps is as large as rounding, which Adam else makes as large as a step where a gradient is almost 0."""
    makes = [OPTIMIZERS["momentum"]]
    makes += [partial(kind, lr=0.01, eps=1e-4) for kind in (torch.optim.Adam, torch.optim.AdamW)]
    for rows in (1, 32, 512):

        def loop(model: Any, optimizer: Any, data: Data, step: int, rows: int = rows) -> None:
            optimizer.zero_grad()
            x, y = data.batch(rows=rows)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        for make in makes:
            way = {"second.weight": "factors", "first.weight": "adam"}
            check(ctx, make, model=wide, loop=loop, way=way, batch=rows, steps=2).close()


@case
def a_layer_waits_for_the_updates_of_a_slow_rank(ctx: hpcomm.Context) -> None:
    """No layer begins a step before its update is there (the binary vector C): one rank sends each layer late."""
    slow = ctx.rank == ctx.size - 1

    def late() -> Any:
        model = wide()
        for layer in (model.first, model.second, model.last) if slow else ():
            layer.register_full_backward_hook(lambda *_: time.sleep(0.004))
        return model

    for way in ("ps", "factors", "adam"):
        check(ctx, model=late, steps=3, overlap=True, way=way, batch=BATCH).close()


@case
def ranks_that_have_run_out_of_batches_follow(ctx: hpcomm.Context) -> None:
    for way in WAYS[2:4]:
        ours, alone = wide(), wide()
        optimizer = ht.DistributedOptimizer(cases.momentum(ours.parameters()), ctx, ours, clip_norm=0.3, **way)
        plain, data, every = cases.momentum(alone.parameters()), Data(ctx, ctx.size), Data(None, ctx.size)
        steps = [3 + 2 * rank for rank in range(ctx.size)]
        with ht.join(optimizer):
            for step in range(steps[ctx.rank]):
                cases.plain_step(ours, optimizer, data, step)
        for step in range(max(steps)):
            plain.zero_grad()
            (x, _), (_, y) = every.batch(), every.batch()
            for rank in range(ctx.size):
                own = slice(rank * BATCH, (rank + 1) * BATCH)
                if step < steps[rank]:
                    (F.cross_entropy(alone(x[own]), y[own]) / ctx.size).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 0.3)
            plain.step()
        check_same(ours, alone)
        check_bits(ctx, ours)
        optimizer.close()


def goes_on(first: int, way: Any, chooses: bool = False, **options: Any) -> None:
    """The last rank leaves after some steps; the others keep the ways, and take the steps of one process. chooses:
    it leaves at the end of the last of them, while the exchange is made anew."""
    world: Any = cases.mpi.world()
    with hpcomm.init(world, timeout=20) as ctx:
        ours, alone, left = wide(), wide(), ctx.size - 1
        make = OPTIMIZERS["adamw"]
        optimizer = ht.DistributedOptimizer(make(ours.parameters()), ctx, ours, servers=left, way=way, **options)
        plain = make(alone.parameters())
        batches = [Data(None, ctx.size).batch() for _ in range(first + 4)]

        def step(number: int) -> None:
            x, y = batches[number]
            own = slice(ctx.rank * BATCH, (ctx.rank + 1) * BATCH)
            optimizer.zero_grad()
            F.cross_entropy(ours(x[own]), y[own]).backward()
            optimizer.step()

        def leave() -> None:
            ctx.abort("test")
            raise ZeroDivisionError

        for number in range(first - chooses):
            step(number)
        optimizer.wait()
        before, mode = dict(optimizer.ways.of), cast("Any", optimizer._mode)
        world.allgather(b"")  # not by the context, which some would not have left yet
        if ctx.rank == left and chooses:
            mode._made = leave
            with pytest.raises(ZeroDivisionError):
                step(first - 1)
            return
        if ctx.rank == left:
            ctx.abort("test")
            return
        with pytest.raises(hpcomm.PeerFailed):
            step(first - chooses)
        found = optimizer.recover()
        assert (found.clock, found.lost) == (first, (left,))
        assert optimizer.ways.of == before
        for number in range(first, first + 4):
            step(number)
        for number, (x, y) in enumerate(batches):
            plain.zero_grad()
            rows = BATCH * (ctx.size if number < first else left)
            F.cross_entropy(alone(x[:rows]), y[:rows]).backward()
            plain.step()
        optimizer.wait()
        check_same(ours, alone, 1e-5)
        check_bits(optimizer.context, ours)
        cases.check_state(optimizer.state_dict(), plain.state_dict())
        assert Book.of(optimizer.exchange).query("n_worker") == left
        assert schemes_of(optimizer) or way == "paper"
        told = str(sorted(optimizer.ways.of.items())).encode()
        assert len(set(optimizer.context.allgather(told))) == 1
        optimizer.context.close()


@everywhere
def the_others_go_on_without_a_rank(ctx: hpcomm.Context) -> None:
    """Each rank counts as a host: where several hosts have several ranks, pairs need a checkpoint."""
    if ctx.size == 1:
        return
    with mock.patch.object(hpcomm.Context, "hosts", property(lambda ctx: tuple(range(ctx.size)))):
        goes_on(3, {"second.weight": "factors"})
        goes_on(3, "factors", batch=BATCH, skip_weight_grad=True, clip_norm=1e6)
        goes_on(0, "factors")  # nothing is chosen yet
        goes_on(1, "factors", chooses=True)
        goes_on(3, "paper", revisit=2)  # chosen again afterwards


@case
def means_are_looked_at_and_scaled(ctx: hpcomm.Context) -> None:
    """clip_grad_norm_ by hand, between synchronize and step."""

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        if data.ctx is not None:
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    for way in WAYS:
        check(ctx, model=wide, loop=loop, **way).close()

    def changed(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        optimizer.synchronize()
        model.second.weight.grad[0, 0] += 1
        optimizer.step()

    model = wide()
    optimizer = ht.DistributedOptimizer(cases.momentum(model.parameters()), ctx, model, way="factors", batch=BATCH)
    with refuses(
        r"mean gradient of 'second.weight'.* by more than a factor: .*pairs.*: give way=\{'second.weight': \"ps\"\}"
    ):
        changed(model, optimizer, Data(ctx, ctx.size), 0)


@case
def a_scaler_skips_a_step_of_pairs(ctx: hpcomm.Context) -> None:
    for way in WAYS:
        scalers: dict[bool, Any] = {}

        def loop(model: Any, optimizer: Any, data: Data, step: int, scalers: dict[bool, Any] = scalers) -> None:
            scaler = scalers.setdefault(data.ctx is None, torch.amp.GradScaler("cpu", init_scale=1024.0))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.batch()[0]), data.batch()[1])
            if step == 3 and (data.ctx is None or data.ctx.rank == data.size - 1):  # one rank alone overflows
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            if step == 1:
                if data.ctx is not None:
                    optimizer.synchronize()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            scaler.step(optimizer)
            scaler.update()

        optimizer = check(ctx, model=wide, loop=loop, **way)
        assert optimizer.stats().skipped == 1
        optimizer.close()


@case
def passes_add_their_pairs(ctx: hpcomm.Context) -> None:
    """no_sync, several passes a step, a layer that is called twice, and sequences."""

    def quiet(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        with contextlib.nullcontext() if data.ctx is None else optimizer.no_sync():
            F.cross_entropy(model(data.batch()[0]), data.batch()[1]).backward()
        x, y = data.batch()
        F.cross_entropy(model(x.reshape(2, -1, 10)).reshape(-1, 4), y).backward()  # (2, n, 10): a sequence
        optimizer.step()

    def twice(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        (x, y), (other, _) = data.batch(), data.batch()
        F.cross_entropy(model(x) + model(other), y).backward()
        optimizer.step()

    for way in WAYS:
        more = {"batch": 2 * BATCH} if "batch" in way else {}
        check(ctx, model=wide, loop=quiet, **{**way, **more}).close()
        check(ctx, model=wide, loop=twice, **{**way, **more}).close()


@case
def gradients_by_the_inputs_are_none_of_the_weight(ctx: hpcomm.Context) -> None:
    """A gradient penalty, which runs a backward pass through the layers that gives weights nothing."""

    def loop(model: Any, optimizer: Any, data: Data, step: int) -> None:
        optimizer.zero_grad()
        x, y = data.batch()
        x.requires_grad_()
        loss = F.cross_entropy(model(x), y)
        torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
        optimizer.step()

    check(ctx, model=wide, loop=loop, way="factors", batch=BATCH).close()


@case
def a_rank_has_no_gradient(ctx: hpcomm.Context) -> None:
    """Rank 1 skips a backward pass, and zero_grad takes one back."""
    for skip in (False, True):
        ours, alone = wide(), wide()
        options: Any = {"way": "factors", "batch": BATCH, "skip_weight_grad": skip}
        optimizer = ht.DistributedOptimizer(cases.momentum(ours.parameters()), ctx, ours, **options)
        plain = cases.momentum(alone.parameters())
        x, y = Data(None, 1).batch()
        for step in range(4):
            if step == 2:  # it does not count
                F.cross_entropy(ours(x), y).backward()
            optimizer.zero_grad()
            plain.zero_grad()
            if ctx.rank == 0:
                F.cross_entropy(ours(x), y).backward()
            (F.cross_entropy(alone(x), y) / ctx.size).backward()
            optimizer.step()
            plain.step()
        check_same(ours, alone)
        check_bits(ctx, ours)
        optimizer.close()


@case
def skipped_gradients_are_none(ctx: hpcomm.Context) -> None:
    model = wide()
    optimizer = ht.DistributedOptimizer(
        cases.momentum(model.parameters()), ctx, model, way="factors", batch=BATCH, skip_weight_grad=True
    )
    x, y = Data(ctx, ctx.size).batch()
    F.cross_entropy(model(x), y).backward()
    assert model.first.weight.grad is None
    assert model.second.weight.grad is None
    assert model.last.weight.grad is not None
    optimizer.synchronize()
    alone, (every, targets) = wide(), Data(None, ctx.size).batch()
    F.cross_entropy(alone(every), targets).backward()
    torch.testing.assert_close(model.second.weight.grad, alone.second.weight.grad, rtol=1e-4, atol=1e-6)
    optimizer.step()
    optimizer.close()
    F.cross_entropy(model(x), y).backward()  # the model is torch's own again
    assert model.first.weight.grad is not None


@case
def a_copy_of_the_model_is_torchs_own(ctx: hpcomm.Context) -> None:
    """As trainers keep one for its mean weights."""
    for skip in (False, True):
        model = wide()
        optimizer = ht.DistributedOptimizer(
            cases.momentum(model.parameters()), ctx, model, way="factors", batch=BATCH, skip_weight_grad=skip
        )
        x, y = Data(ctx, ctx.size).batch()
        twin = copy.deepcopy(model)
        F.cross_entropy(model(x), y).backward()
        F.cross_entropy(twin(x), y).backward()
        plain = wide()
        plain.load_state_dict(twin.state_dict())
        F.cross_entropy(plain(x), y).backward()
        for p, q in zip(twin.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        optimizer.step()
        optimizer.close()


@everywhere
def the_choice_is_the_same_on_all_ranks(ctx: hpcomm.Context) -> None:
    """auto, paper, and what the book says of them; the table has each key once, and what was measured."""
    for way in ("auto", "paper"):
        optimizer = check(ctx, model=wide, way=way, steps=3, revisit=2)
        told = str(sorted(optimizer.ways.of.items())).encode()
        assert len(set(ctx.allgather(told))) == 1
        book = Book.of(optimizer.exchange)
        assert book.query("n_worker", "n_server") == (ctx.size, ctx.size)
        if ctx.size > 1:
            assert book.query("second.weight").pairs == 2 * BATCH
            assert (book.rates is None) == (way == "paper")
            for name in PAIRS:
                assert book.best_way(name) == {"ps": "PS", "factors": "SFB"}[optimizer.ways.of[name]]
                shape, p, k = book.query(name).shape, ctx.size, 2 * BATCH
                saves = 2 * k * (p - 1) * sum(shape) <= 2 * shape[0] * shape[1] * (2 * p - 2) / p
                assert book.best_way(name, "paper") == ("SFB" if saves else "PS")
        optimizer.zero_grad()
        optimizer.measure_ways(1)
        table = str(optimizer.ways).splitlines()
        assert [line.split()[0] for line in table[1:]] == [name for name, _ in optimizer._model.named_parameters()]
        for name in PAIRS if ctx.size > 1 else ():
            assert 0 < optimizer.ways.measured[name].sent <= 1.01 * optimizer.ways.predicted(name).sent + 64
        optimizer.close()


@case
def lossy_codecs_are_chosen_where_links_are_slow(ctx: hpcomm.Context) -> None:
    """By the rates of their encoders, which are measured, and those of links and products, which are told here."""
    between, multiply = [1e6], [1e3]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hpcomm.Context, "hosts", property(lambda ctx: ctx.ranks))
        patched.setattr(hpcomm.measure, "measure_rates", lambda *_: hpcomm.model.Rates(between[0]))
        patched.setattr(hpcomm.measure, "multiply_rate", lambda *_: multiply[0])

        def made(**options: Any) -> tuple[Any, Any]:
            model = wide()
            optimizer = ht.DistributedOptimizer(cases.momentum(model.parameters()), ctx, model, **options)
            return model, optimizer

        model, optimizer = made(way="auto", lossy=True, revisit=3)
        data, top = Data(ctx, ctx.size), hpcomm.codec.TopK(0.01)
        for step in range(8):
            assert optimizer.ways.codecs == ({} if step in (0, 6, 7) else dict.fromkeys(PAIRS, top)), step
            if step == 5:
                between[0] = math.inf  # and the links are measured again
            assert [optimizer.exchange.codecs[name] == top for name in PAIRS] == [0 < step < 6] * 2
            cases.plain_step(model, optimizer, data, step)
        optimizer.close()

        between[0] = 1e6
        for lossy, way, told in (
            ([hpcomm.codec.BFLOAT16], "ps", "ps, bfloat16"),
            ([hpcomm.codec.BFLOAT16, hpcomm.codec.OneBit()], "1bit", "1bit"),
            ([hpcomm.codec.Threshold(1e-3)], "ps", "ps, Threshold(0.001)"),
        ):
            model, optimizer = made(way="auto", lossy=lossy, batch=BATCH)
            assert schemes_of(optimizer) == ({} if way == "ps" else dict.fromkeys(PAIRS, way))
            assert optimizer.exchange.codecs["second.weight"] == lossy[-1]
            assert optimizer.exchange.codecs["last.weight"] == hpcomm.codec.FLOAT32  # it is small
            assert re.search(rf"^second.weight .*  {re.escape(told)}  ", str(optimizer.ways), re.MULTILINE)
            dense = 2 * 4 * model.second.weight.numel() * (ctx.size - 1)
            assert optimizer.ways.predicted("second.weight").sent < 0.8 * dense
            cases.plain_step(model, optimizer, data, 0)
            cases.check_bits(ctx, model)
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.close()
        multiply[0] = 1e15  # pairs take next to nothing
        model, optimizer = made(way="auto", lossy=True, batch=1)
        assert schemes_of(optimizer) == dict.fromkeys(PAIRS, "factors")
        optimizer.close()


@case
def states_are_those_of_torch(ctx: hpcomm.Context) -> None:
    make = OPTIMIZERS["adamw"]
    ours, optimizer, _, plain = cases.both(ctx, make, model=wide, way="factors")
    sent: list[int] = []
    put = hpcomm.Window.put

    def counted(window: Any, peer: int, data: Any, at: int) -> None:
        sent.append(data.size)
        put(window, peer, data, at)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hpcomm.Window, "put", counted)
        cases.check_state(optimizer.state_dict(), plain.state_dict())
    assert 0 < sum(sent) < 4 * ours.second.weight.numel()  # what all have is not sent
    again = make(ours.parameters())
    again.load_state_dict(optimizer.state_dict())
    optimizer.load_state_dict(plain.state_dict())
    cases.check_state(optimizer.state_dict(), plain.state_dict())
    optimizer.close()


@case
def checkpoints_go_from_scheme_to_scheme(ctx: hpcomm.Context) -> None:
    """A checkpointer follows the exchange that the first step makes; what it saved is restored under other ways."""
    data = Data(ctx, ctx.size)
    batches = [data.batch() for _ in range(5)]

    def trained(optimizer: Any, model: Any, steps: Any) -> list[Any]:
        for x, y in steps:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.wait()
        return [p.detach().clone() for p in model.parameters()]

    with directory(ctx) as folder:
        model = wide()
        optimizer = ht.DistributedOptimizer(OPTIMIZERS["adamw"](model.parameters()), ctx, model, way="factors")
        with ht.ModelCheckpointer(optimizer, folder, every=1) as saver:
            trained(optimizer, model, batches[:3])
            saver.after(3)
        expected = trained(optimizer, model, batches[3:])
        optimizer.close()
        others: list[dict[str, Any]] = [{}, {"way": "factors", "batch": BATCH}, {"way": "adam"}]
        for options in others:
            model = wide()
            optimizer = ht.DistributedOptimizer(OPTIMIZERS["adamw"](model.parameters()), ctx, model, **options)
            restored = ht.restore(optimizer, folder)
            assert restored is not None
            assert restored.step == 3
            for found, value in zip(trained(optimizer, model, batches[3:]), expected, strict=True):
                torch.testing.assert_close(found, value, rtol=1e-4, atol=2e-6)
            optimizer.close()


class Odd(nn.Module):
    """A weight that a function reads, one with a hook, a tied one, and one whose output is a plain product."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.hooked = nn.Linear(10, 512), nn.Linear(512, 64)
        self.tied, self.plain = nn.Linear(64, 64), nn.Linear(64, 64)
        self.same, self.last = nn.Linear(64, 64), nn.Linear(64, 4)
        self.same.weight = self.tied.weight
        self.hooked.weight.register_hook(lambda grad: grad * 1)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(F.linear(x, self.read.weight, self.read.bias))
        x = self.plain(self.same(torch.tanh(self.tied(torch.tanh(self.hooked(x))))))
        return self.last(x)


def odd() -> Any:
    torch.manual_seed(3)
    return Odd()


@case
def other_layers_go_as_matrices(ctx: hpcomm.Context) -> None:
    with logs() as told:
        optimizer = check(ctx, model=odd, way="factors", steps=3)
    assert schemes_of(optimizer) == {"plain.weight": "factors"}
    assert "not called" in optimizer.ways.why["read.weight"]
    assert "has hooks" in optimizer.ways.why["hooked.weight"]
    assert ctx.rank or any("'read.weight' goes as a matrix" in sentence for sentence in told)
    optimizer.close()


@case
def more_rows_than_agreed_are_an_error(ctx: hpcomm.Context) -> None:
    model = wide()
    optimizer = ht.DistributedOptimizer(cases.momentum(model.parameters()), ctx, model, way="factors", batch=BATCH - 1)
    x, y = Data(ctx, ctx.size).batch()
    with refuses(
        f"rank {ctx.rank}: layer 'second.weight' had {BATCH} rows .* {BATCH - 1} pairs at most: give batch={BATCH}"
    ):
        F.cross_entropy(model(x), y).backward()
    assert optimizer.stats().steps == 0


@case
def bad_arguments_are_refused(ctx: hpcomm.Context) -> None:
    def made(match: str, model: Any = None, error: Any = hpcomm.InvalidArgument, **options: Any) -> None:
        model = model or wide()
        with pytest.raises(error, match=match):
            ht.DistributedOptimizer(cases.momentum(model.parameters()), ctx, model, **options)

    made(r"way is 'best': must be one of 'auto', 'paper'", way="best")
    made(r"way is 3: must be a word, or a mapping", way=3)
    made(
        r"way names 'second.weigh', which is no parameter: did you mean 'second.weight'",
        way={"second.weigh": "ps"},
    )
    made(r"way of 'second.weight' is 'sfb': must be one of 'ps'", way={"second.weight": "sfb"})
    made(
        r"way of 'first.bias' is 'factors': it is not the weight of a plain nn.Linear",
        way={"first.bias": "factors"},
    )
    made(r"way of 'hooked.weight' is 'adam': its weight has hooks", odd(), way={"hooked.weight": "adam"})
    made(r"'tied.weight' is 'factors': it is not the weight of a plain", odd(), way={"tied.weight": "factors"})
    made(
        r"way of 'second.weight' is 'factors', and topology= or codec= names it as well",
        way={"second.weight": "factors"},
        codec={"second.weight": "float16"},
    )
    made(
        r"way of 'second.weight' is 'factors', by which no parameters are sent, and codec_out= names it",
        way={"second.weight": "factors"},
        codec_out={"second.weight": "float16"},
    )
    made(r"batch is 0: must be 1 to", way="auto", batch=0)
    made(r"revisit is 0: must be 1 to", way="auto", revisit=0)
    made(r"skip_weight_grad is 2: must be a bool", way="auto", skip_weight_grad=2)
    for wrong in (3, "bfloat16", [hpcomm.codec.FLOAT32], [hpcomm.codec.Factors(3)], [hpcomm.codec.Auto()]):
        made(r"lossy has .*: must be True, False, or lossy values of hpcomm.codec", way="auto", lossy=wrong)
    for way in ("factors", "paper", {"second.weight": "ps"}, None):
        made(r'lossy is True, and way is not "auto", which alone chooses codecs', way=way, lossy=True)
    made(r"lossy is True, and codec is 'float16' for all keys", way="auto", lossy=True, codec="float16")
    made(r"way is 'auto': it needs apply=\"step\" or", error=hpcomm.NotSupported, way="auto", apply="backward")
    made(r"way is 'auto': it needs", error=hpcomm.NotSupported, way="auto", consistency=hpcomm.SSP(1))


@case
def ranks_that_ask_for_different_schemes_are_told(ctx: hpcomm.Context) -> None:
    def hooked() -> Any:
        model = wide()
        model.second.weight.register_hook(lambda grad: grad)
        return model

    ways: list[tuple[Any, dict[str, Any], Any, dict[str, Any]]] = [
        (wide, {"way": "auto"}, wide, {}),
        (wide, {"way": "auto"}, wide, {"way": "paper"}),
        (wide, {"way": "factors", "batch": 6}, wide, {"way": "factors", "batch": 7}),
        (wide, {"way": "factors"}, wide, {"way": "factors", "skip_weight_grad": True}),
        (wide, {"way": "factors"}, hooked, {"way": "factors"}),
        (wide, {"way": "auto"}, wide, {"way": "auto", "lossy": True}),
    ]
    for make, options, other, others in ways:
        model = make() if ctx.rank == 0 else other()
        with pytest.raises(hpcomm.ConfigError, match="rank 1 has another way, batch, revisit"):
            ht.DistributedOptimizer(
                cases.momentum(model.parameters()), ctx, model, **(options if ctx.rank == 0 else others)
            )


@case
def keys_that_are_named_keep_what_was_said(ctx: hpcomm.Context) -> None:
    optimizer = check(ctx, model=wide, way="factors", topology={"first.weight": hpcomm.PeerToPeer()}, steps=3)
    assert schemes_of(optimizer) == {"second.weight": "factors"}
    assert re.search(r"^first\.weight.* ps ", str(optimizer.ways), re.MULTILINE)
    optimizer.close()


@case
def parameters_of_pairs_are_not_rounded(ctx: hpcomm.Context) -> None:
    """codec_out is for the other layers, before the first step and after it; a layer that becomes a matrix has it
    again."""
    for way in ("factors", "adam"):
        for codec_out in ("bfloat16", {"second.weight": "bfloat16", "last.weight": "bfloat16"}):
            model, anew = wide(), with_more(lambda m, _, step: m.second.weight.pow(2).sum() if step > 2 else 0)
            made = cases.momentum(model.parameters())
            optimizer = ht.DistributedOptimizer(made, ctx, model, way=way, codec_out=codec_out)
            for step in range(5):
                anew(model, optimizer, Data(ctx, ctx.size), step)
                check_bits(ctx, model)
                rounded = bool((model.second.weight == model.second.weight.bfloat16()).all())
                assert rounded == (way == "adam" or step > 2), (way, codec_out, step)
                assert bool((model.last.weight == model.last.weight.bfloat16()).all())
            optimizer.close()


@pytest.mark.parametrize("name", cases.names(__name__))
def test_case(shm: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in shm] == [""] * 2


@pytest.mark.some(3)
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_by_one_rank(one: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in one] == [""]


@pytest.mark.some(2)
@pytest.mark.parametrize("name", cases.names(__name__, cases.EVERYWHERE))
def test_case_over_a_wire(wire: list[dict[str, str]], name: str) -> None:
    assert [value[name] for value in wire] == [""] * 3
