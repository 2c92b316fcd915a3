"""The metrics of a hub: what Prometheus' own parser reads on the page, and what strangers can do at its port."""

import asyncio
import http.client
import os
import re
import socket
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import SECONDS, SHAPES, TOKENS, VALUES, Served, caller, join, numbers, rest, run, train

import hpcomm
from hpcomm.errors import ConfigError
from hpcomm.service import ADMIN, HubConnection, address, metrics, web
from hpcomm.service.config import read_config
from hpcomm.service.exposition import Page
from hpcomm.service.handle import HubAddress
from hpcomm.service.hub import Hub

pytest_plugins = ["served"]
pytestmark = pytest.mark.xdist_group("group service metrics")  # one hub for all tests
HUB = {"checkpoints": "saved", "metrics": "127.0.0.1:0"}

Found = dict[str, float]  # by the name and the values of labels, with spaces between them

GUIDE = Path(__file__).resolve().parents[1] / "docs/service.md"
SHOWN_SOMETIMES = {f"hpcomm_hub_{name}" for name in ("drain_left_seconds", "jobs_failed_total", "jobs_never_ran_total")}
SAMPLE = re.compile(r'([a-z_]+)(?:\{(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+\})? (\S+)')


def port_of(hub: Served) -> int:
    told = next(line for line in hub.lines if "metrics are at" in line)
    return int(told.strip().removesuffix(metrics.PATH).rpartition(":")[2])


def get(port: int, path: str = metrics.PATH, method: str = "GET") -> tuple[http.client.HTTPResponse, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read().decode()


def page(port: int) -> str:
    answer, text = get(port)
    assert (answer.status, answer.version) == (200, 11)
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return text


def read(text: str) -> Found:
    """What the parser finds. Beside it the rules that the parser does not check."""
    kinds: dict[str, str] = {}
    name = ""
    for line in text.removesuffix("\n").split("\n"):
        word, _, more = line.partition(" ")
        if word == "#":
            what, name, about = more.split(" ", 2)
            assert what == ("TYPE" if name in kinds else "HELP"), "HELP comes once, and TYPE after it"
            assert kinds.setdefault(name, "") == ""
            kinds[name] = about if what == "TYPE" else ""
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == name, "samples follow their HELP and TYPE"
    assert text.endswith("\n")
    found: Found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for one in family.samples:
            assert kinds[one.name] == family.type
            assert (family.type == "counter") == one.name.endswith("_total")
            assert not re.search(r"_(bytes|seconds)_(?!total)", one.name), "the unit comes last"
            assert not {"job", "instance"} & one.labels.keys(), "Prometheus would rename them"
            key = " ".join((one.name, *one.labels.values()))
            assert key not in found
            found[key] = one.value
    assert len(found) == sum(not line.startswith("#") for line in text.splitlines())
    return found


def counters(found: Found) -> Found:
    return {key: value for key, value in found.items() if key.partition(" ")[0].endswith("_total")}


# ---- what the page has ---------------------------------------------------------------------------------------------


def watch(handle: str, token: str, port: int) -> list[str]:
    """Trains, and reads the page now and then."""
    pages = []
    with join(handle, token) as ctx:
        for _ in range(2):
            with hpcomm.parameter_hub(ctx, VALUES, servers="hub", rule=hpcomm.SGD(lr=0.5)) as ex:
                while 'hpcomm_hub_job_exchanges{namespace="a",job_name="seen"} 1' not in page(port):
                    pass  # the hub's thread counts the exchange a moment after it has made it
                for step in range(3):
                    ex.step({name: numbers(shape, 100 * ctx.rank + step) for name, shape in SHAPES.items()})
                    ctx.barrier()
                    pages.append(page(port))
                    ctx.barrier()
                ex.save()
                pages.append(page(port))
                ctx.barrier()
    return pages


def test_metrics_follow_a_job(hub: Served) -> None:
    port = port_of(hub)
    before = read(page(port))
    pages = run(2, watch, hub.create("a", "seen"), port)[0]
    hub.until("a/seen has ended")
    after = read(page(port))
    run(1, train, hub.create("a", "next"), 1)
    hub.until("a/next has ended")
    every = [before, *map(read, pages), after, read(page(port))]
    for old, new in pairwise(every):
        for key, value in counters(old).items():
            assert new.get(key, value) >= value, "a counter never shrinks; that of a job may go"
            assert key in new or key.startswith("hpcomm_hub_job_")
    first, saved = every[1], every[4]
    assert every[-1]["hpcomm_hub_pushes_total a"] - after["hpcomm_hub_pushes_total a"] == len(SHAPES)
    assert first["hpcomm_hub_jobs a runs"] == first["hpcomm_hub_exchanges a"] == 1
    assert first["hpcomm_hub_workers a"] == first["hpcomm_hub_job_workers a seen"] == 2
    assert first["hpcomm_hub_job_memory_bytes a seen"] == first["hpcomm_hub_memory_bytes a"] > 0
    assert first["hpcomm_hub_job_pushes_total a seen"] == 2 * len(SHAPES)
    nbytes = 2 * 4 * sum(value.size for value in VALUES.values())
    assert first["hpcomm_hub_job_folded_bytes_total a seen"] == nbytes
    assert first["hpcomm_hub_job_busy_seconds_total a seen"] > 0
    assert saved["hpcomm_hub_job_pushes_total a seen"] == 3 * 2 * len(SHAPES)
    assert after["hpcomm_hub_saves_total"] == 2
    named = set(re.findall(r"(?:hpcomm_hub|process)_[a-z_]+", GUIDE.read_text(encoding="utf-8")))
    shown = {key.partition(" ")[0] for found in every for key in found}
    assert shown | SHOWN_SOMETIMES == named - {"hpcomm_hub_job_"}, "the guide has each metric, and no other"
    assert saved["hpcomm_hub_saved_jobs a"] == 1
    assert saved["hpcomm_hub_job_saved_step a seen"] == 3
    files = [file.stat() for file in hub.folder.rglob("*.ckpt")]
    assert after["hpcomm_hub_saved_bytes a"] == sum(file.st_size for file in files)
    newest = max(file.st_mtime for file in files)
    assert abs(after["hpcomm_hub_job_saved_timestamp_seconds a seen"] - newest) <= 1
    assert after["hpcomm_hub_pushes_total a"] - before["hpcomm_hub_pushes_total a"] == 2 * 3 * 2 * len(SHAPES)
    assert [key for key in after if "seen" in key and "saved" not in key] == [], "the job's values end with the job"
    assert after["hpcomm_hub_jobs a runs"] == after["hpcomm_hub_memory_bytes a"] == 0


def test_the_page_has_quotas_refusals_and_the_version(hub: Served) -> None:
    hub.create("small", "waits")
    with pytest.raises(ConfigError, match="and may have no more"):
        hub.create("small", "second")
    with pytest.raises(hpcomm.AuthError):
        hpcomm.create_service(hub.where, "small", TOKENS["a"])
    found, status = read(page(port_of(hub))), hub.ask(op="status")
    assert found[f"hpcomm_hub_info {hpcomm.__version__}"] == 1
    assert found["hpcomm_hub_jobs small waits"] == found["hpcomm_hub_jobs_quota small"] == 1
    assert found["hpcomm_hub_memory_quota_bytes small"] == 6 << 20
    assert found["hpcomm_hub_saved_quota_bytes small"] == 512 << 10
    assert found["hpcomm_hub_descriptors_quota tiny"] == 31
    assert found["hpcomm_hub_refusals_total job quota"] == found["hpcomm_hub_refusals_total wrong token"] == 1
    assert found["hpcomm_hub_draining"] == 0
    for what, n in status["counts"].items():
        kind, _, reason = what.partition(": ")
        name = metrics._BY_REASON[kind][0] if reason else metrics._PLAIN[kind][0]
        assert found[f"{name}_total {reason}".strip()] == n


def test_each_count_of_a_hub_has_a_metric() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in Path(metrics.__file__).parent.glob("*.py"))
    kinds = set(re.findall(r'count\(\s*f?"([^":]+)', source))
    assert kinds == {*metrics._PLAIN, *metrics._BY_REASON}


def drain(handle: str, token: str, where: str, port: int) -> str:
    """Lets the hub drain while its job runs."""
    admin = TOKENS["admin"].encode()
    with join(handle, token), closing(HubConnection(address(where), ADMIN, admin, SECONDS)) as asks:
        asks.ask({"op": "drain", "seconds": 60})
        return page(port)


def test_a_folder_that_hangs_holds_up_no_page_and_a_drain_is_told(tmp_path: Path) -> None:
    patch = "import hpcomm.service.metrics as metrics; metrics._READ_SECONDS = 0.1"
    hub = Served(tmp_path, patch, checkpoints="saved", metrics="127.0.0.1:0")
    port, hangs = port_of(hub), tmp_path / "saved/b/slow/run-1/exchange-0/step-1.rank-0.ckpt"
    hangs.parent.mkdir(parents=True)
    os.mkfifo(hangs)
    before = hub.ask(op="status")["threads"]
    for _ in range(3):
        assert read(page(port))["hpcomm_hub_saved_jobs b"] == 0
    assert hub.ask(op="status")["threads"] <= before + 1
    with open(hangs, "wb"):
        pass
    hangs.unlink()
    found = read(run(1, drain, hub.create(), hub.where, port)[0])
    assert found["hpcomm_hub_draining"] == 1
    assert 0 < found["hpcomm_hub_drain_left_seconds"] <= 60
    assert hub.process.wait(SECONDS) == 0


def test_where_metrics_are(tmp_path: Path) -> None:
    (tmp_path / "a.token").write_text("a token of sixteen bytes")
    (tmp_path / "a.token").chmod(0o600)
    file = tmp_path / "hub.toml"
    spaces = '\n[namespaces.a]\ntoken_file = "a.token"'
    for written, given, found in (
        ("", None, None),
        ('metrics = "[::1]:9100"', None, HubAddress("::1", 9100)),
        ('metrics = "127.0.0.1:9100"', "127.0.0.1:9200", HubAddress("127.0.0.1", 9200)),
    ):
        file.write_text(written + spaces)
        assert read_config(file, None, given).metrics == found
    file.write_text("metrics = 9100" + spaces)
    with pytest.raises(ConfigError, match="metrics is 9100: must be HOST:PORT"):
        read_config(file)


def test_windows_are_in_proportion_to_weights(tmp_path: Path) -> None:
    lines = []
    for name in "abc":
        (tmp_path / f"{name}.token").write_text(f"a token of namespace {name}")
        (tmp_path / f"{name}.token").chmod(0o600)
        lines.append(f'[namespaces.{name}]\ntoken_file = "{name}.token"\nweight = ')
    for weights, windows in (
        ((2, 2, 2), (0, 0, 0)),
        ((1, 3, 1.5), (65536, 196608, 98304)),
        ((1, 1e6, 1), (16384, 196608, 16384)),
    ):
        file = tmp_path / "hub.toml"
        file.write_text("\n".join(f"{line}{weight}" for line, weight in zip(lines, weights, strict=True)))
        config = read_config(file)
        assert tuple(config.window(one) for one in config.namespaces.values()) == windows


def test_nics_are_chosen_by_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOMM_SOCKET_IFNAME", "=lo")
    monkeypatch.setenv("HPCOMM_DEVICES", "mlx4")
    (tmp_path / "a.token").write_text("a token of sixteen bytes")
    (tmp_path / "a.token").chmod(0o600)
    file = tmp_path / "hub.toml"
    spaces = '\n[namespaces.a]\ntoken_file = "a.token"'
    for written, found in (("", ("=lo", "mlx4")), ('socket_ifname = "eth"\ndevices = ""', ("eth", ""))):
        file.write_text(written + spaces)
        base = Hub(lambda: read_config(file), print)._base
        assert (base.socket_ifname, base.devices) == found
    file.write_text("devices = 3" + spaces)
    with pytest.raises(ConfigError, match="devices is 3: must be text"):
        read_config(file)


def test_labels_and_help_are_escaped() -> None:
    odd = 'a\\b"c\nd, {e="f"} \u00e9'
    made = Page()
    made.counter("c", "back\\slash\nnewline", [({"x": odd}, 1), ({"x": "n"}, float("nan"))])
    made.gauge("g", "infinite", [({}, float("-inf"))])
    made.gauge("none", "no samples", [])
    one, two = text_string_to_metric_families(str(made))
    assert one.documentation == "back\\slash\nnewline"
    assert [(sample.name, sample.labels["x"]) for sample in one.samples] == [("c_total", odd), ("c_total", "n")]
    assert two.samples[0].value == float("-inf")


# ---- strangers -----------------------------------------------------------------------------------------------------


def sent(port: int, data: bytes) -> bytes:
    """What comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as one:
        with suppress(OSError):  # the hub may have hung up already
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
        return rest(one)


HOST = b"Host: hub\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"GET /metrics?name[]=x HTTP/1.1\r\nhost:hub\r\nX: " + b"x" * 8000 + b"\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /metrics/../etc HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\nx", 405),
        (b"HEAD /metrics HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n" + HOST + b"\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost : hub\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + HOST + b"more\r\n\r\n", 400),
        (b"\0\xff\r\n\r\n", 400),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\n" + HOST, 0),
        (b"", 0),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_answers(hub: Served, data: bytes, status: int) -> None:
    name = "refused: requests for metrics"
    before = hub.counts(name)
    head, _, body = sent(port_of(hub), data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status if status else b"")
    assert bool(head) == bool(status)
    assert hub.counts(name) == before + (status != 200)
    assert (b"\r\nAllow: GET\r\n" in head + b"\r\n") == (status == 405)
    if status:
        length = int(re.findall(rb"\r\nContent-Length: (\d+)\r\n", head)[0])
        assert len(body) == length
    assert (b"hpcomm_hub_info" in body) == (status == 200)


def test_garbage_does_no_harm(hub: Served) -> None:
    port, bits = port_of(hub), run(1, train, hub.create("a", "first"), 1)
    hub.until("a/first has ended")
    before = hub.ask(op="status")
    where = ("127.0.0.1", port)
    silent = [socket.create_connection(where, timeout=SECONDS) for _ in range(web.MOST_CALLERS)]
    page(port)  # the oldest of them makes room
    assert rest(silent[0]) == b""
    silent[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        silent[1].recv(1)
    for data in (os.urandom(1 << 20), b"GET /metrics HTTP/1.1\r\n" * 1000, bytes(1 << 16)):
        assert b" 200 " not in sent(port, data)
    with closing(caller(hub)) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n" + bytes(200))
        assert b"hpcomm_hub" not in rest(one), "the hub's own port shows nothing"
    for one in silent:
        one.close()
    assert run(1, train, hub.create(), 1) == bits
    read(page(port))
    hub.has_only(before)


async def leave(size: int) -> None:
    """Callers that say nothing, and callers that take no page, of so many bytes."""
    refused: list[bool] = []

    async def make() -> str:
        return "x" * size

    server = web.Web("/", "text/plain", make, lambda: refused.append(True))
    where = await server.start(HubAddress("127.0.0.1", 0))
    for said in (b"", b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.0\r\n\r\n"):
        with socket.create_connection((where.host, where.port)) as one:
            one.sendall(said)
            while not refused:
                await asyncio.sleep(0)
            refused.clear()
            assert not server._callers
    await server.close()


def test_callers_that_say_or_take_nothing_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SECONDS", 0.05)
    asyncio.run(asyncio.wait_for(leave(32 << 20), SECONDS))


def test_a_port_that_is_taken_is_named() -> None:
    async def start(where: HubAddress) -> None:
        await web.Web("/", "", lambda: asyncio.sleep(0, ""), lambda: None).start(where)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = HubAddress(*taken.getsockname())
        with pytest.raises(ConfigError, match=f"the hub cannot serve metrics at {where}: "):
            asyncio.run(start(where))
