"""hpcomm hub: runs a hub, creates jobs there, and administers it."""

import asyncio
import json
import resource
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..config import read_secret
from ..errors import AuthError, HpcommError
from ..service import ADMIN, HubConnection, address, create_service, heap
from ..service.config import HubConfig, Namespace, read_config
from ..service.handle import checked_name
from ..service.hub import Hub

_SECONDS = 10.0


def _fail(error: HpcommError, status: int = 1) -> None:
    click.echo(f"hpcomm hub: {error}", err=True)
    sys.exit(status)


@click.group("hub")
def command() -> None:
    """Run a hub, which serves the parameters of many jobs, or ask one.

    serve runs a hub. create makes a job there, for HPCOMM_SERVICE, and forget removes what a job has saved. status,
    jobs, evict and drain need the administrator's token, the contents of the hub's admin_token_file.
    """


def print_now(sentence: str) -> None:
    """Prints a line of the log. Errors have words of tenants in them, so control characters are escaped."""
    line = "".join(one if one.isprintable() else repr(one)[1:-1] for one in sentence)
    click.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')} hpcomm hub: {line}")


@command.command("serve")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen; port 0: any free port. It replaces the file's.")
@click.option("--metrics", metavar="HOST:PORT", help="Where to serve metrics for Prometheus. It replaces the file's.")
@click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The hub's file, in TOML."
)
@click.option("--check", is_flag=True, help="Only read the file and the tokens, and say whether they are good.")
def serve(listen: str | None, metrics: str | None, file: Path, check: bool) -> None:
    """Run a hub until SIGTERM.

    \b
    SIGTERM, SIGINT  drain: take no new jobs, end those that wait for workers, tell those that run,
                     and exit when they have ended, or after drain_seconds
    again            end all jobs at once
    SIGHUP           read the file and the tokens again; a wrong file changes nothing

    \b
    Exit status: 0 after a drain, or if --check finds nothing wrong;
                 1 if the hub cannot begin; 2 for wrong options, or if --check finds something wrong.
    """
    heap.use_few_arenas()
    try:
        if check:
            click.echo(_described(read_config(file, listen, metrics)))
            return
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # a shell's usual 1024 are too few for many workers
        hub = Hub(lambda: read_config(file, listen, metrics), print_now)
        heap.spare_collections()
        asyncio.run(hub.serve(lambda where: print_now(f"listens at {where}")))
    except HpcommError as error:
        _fail(error, 2 if check else 1)
    print_now("has drained")


def _described(config: HubConfig) -> str:
    """Returns a sentence about a good configuration."""
    saves = "saves nothing" if config.checkpoints is None else f"saves into {config.checkpoints}"
    shows = "serves no metrics" if config.metrics is None else f"serves metrics at {config.metrics}"
    asks = "has no administrator" if config.admin is None else "has an administrator"
    names = ", ".join(f"{name}{_users(one)}" for name, one in config.namespaces.items())
    return f"the hub listens at {config.listen}, {shows}, {saves}, {asks}, and has the namespaces {names}"


def _users(space: Namespace) -> str:
    return f" (users {', '.join(map(str, space.users))})" if space.users else ""


@command.command("create")
@click.argument("hubs", metavar="HOST:PORT...", nargs=-1, required=True)
@click.option("--namespace", required=True, help="The tenant's namespace.")
@click.option("--token-file", required=True, help="The file of the namespace's token, which its owner alone may read.")
@click.option("--job", help="The job's name; left out, the hub chooses one.")
@click.option("--resume", is_flag=True, help="Go on from the state that a job of this name has saved.")
def create(hubs: tuple[str, ...], namespace: str, token_file: str, job: str | None, resume: bool) -> None:
    """Create a job and print its handle, for HPCOMM_SERVICE.

    The job waits for its first worker, which calls hpcomm.connect_service(), for the hub's wait_seconds.
    """
    try:
        token = read_secret(token_file, f"--token-file {token_file}")
        click.echo(create_service(list(hubs), namespace, token, job, resume=resume))
    except HpcommError as error:
        _fail(error)


_HUB = click.argument("hub", metavar="HOST:PORT")
_TOKEN = click.option("--token-file", required=True, help="The file of the administrator's token.")
_JSON = click.option("--json", "json_", is_flag=True, help="Print JSON.")


def _asked(hub: str, token_file: str, *, names: tuple[str, ...] = (ADMIN,), **request: Any) -> dict[str, Any]:
    """Returns the hub's answer. names: of whom the token may be."""
    try:
        token = read_secret(token_file, f"--token-file {token_file}")
        assert token is not None
        with closing(_connected(hub, names, token)) as connection:
            return connection.ask(request)
    except HpcommError as error:
        _fail(error)
        raise


def _connected(hub: str, names: tuple[str, ...], token: bytes) -> HubConnection:
    """Returns a connection under the first of the names whose token this is."""
    for name in names[:-1]:
        with suppress(AuthError):
            return HubConnection(address(hub), name, token, _SECONDS)
    return HubConnection(address(hub), names[-1], token, _SECONDS)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _console() -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(width=160, highlight=False, markup=False, emoji=False)


def _print_status(found: dict[str, Any]) -> None:
    console = _console()
    drains = "" if found["drains_in"] is None else f", drains, {found['drains_in']:.0f} s left"
    console.print(
        f"hub of process {found['pid']}, hpcomm {found['version']}, up {found['seconds']:.0f} s{drains}: "
        f"{found['jobs']} jobs, {found['memory']} of {found['memory_quota']} bytes, {found['cores']} cores, "
        f"{found['descriptors']} descriptors, {found['threads']} threads"
    )
    table = _table("namespace", "jobs", "memory", "descriptors", "weight")
    for name, one in found["namespaces"].items():
        jobs, memory = f"{one['jobs']} of {one['job_quota']}", f"{one['memory']} of {one['memory_quota']}"
        descriptors = f"{one['descriptors']} of {one['descriptor_quota']}"
        table.add_row(name, jobs, memory, descriptors, f"{one['weight']:g}")
    console.print(table)
    for what, n in found["counts"].items():
        console.print(f"{n:6} {what}")


@command.command("status")
@_HUB
@_TOKEN
@_JSON
def status(hub: str, token_file: str, json_: bool) -> None:
    """Show a hub: its namespaces with their quotas, and its counts of refusals and of jobs that ended."""
    found = _asked(hub, token_file, op="status")
    if json_:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_status(found)


def _print_jobs(found: list[dict[str, Any]]) -> None:
    table = _table("job", "state", "workers", "exchanges", "memory", "seconds", "saved step", "bytes", "seconds ago")
    for job in found:
        waits = f", for rank {', '.join(map(str, job['missing'][:16]))}" if job["missing"] else ""
        numbers = (str(job[name]) for name in ("workers", "exchanges", "memory"))
        saved = job["saved"]
        its = ("", "", "") if saved is None else (f"{saved['step']}", f"{saved['bytes']}", f"{saved['seconds']:.0f}")
        table.add_row(job["job"], job["state"] + waits, *numbers, f"{job['seconds']:.0f}", *its)
    _console().print(table)


@command.command("jobs")
@_HUB
@_TOKEN
@_JSON
def jobs(hub: str, token_file: str, json_: bool) -> None:
    """Show the jobs of a hub, and what they have saved. A job in the state "saved" does not run."""
    found = _asked(hub, token_file, op="jobs")["jobs"]
    if json_:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_jobs(found)


@command.command("evict")
@_HUB
@click.argument("job", metavar="NAMESPACE/JOB")
@_TOKEN
@_JSON
def evict(hub: str, job: str, token_file: str, json_: bool) -> None:
    """End a job. The workers of a running job get PeerFailed with the reason, others ConfigError."""
    found = _asked(hub, token_file, op="evict", job=job)
    if json_:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_jobs([found])


@command.command("forget")
@_HUB
@click.argument("job", metavar="NAMESPACE/JOB")
@click.option("--token-file", required=True, help="The file of the namespace's token, or of the administrator's.")
@_JSON
def forget(hub: str, job: str, token_file: str, json_: bool) -> None:
    """Remove the state that a job has saved. The job must have ended."""
    space, _, name = job.partition("/")
    try:
        names = (checked_name("namespace", space), ADMIN)
        checked_name("job", name)
    except HpcommError as error:
        _fail(error)
        raise
    found = _asked(hub, token_file, names=names, op="forget", job=job)
    click.echo(json.dumps(found, indent=2) if json_ else f"{found['job']}: its saved state is removed")


@command.command("drain")
@_HUB
@click.option("--seconds", type=click.FloatRange(min=0), help="How long jobs may go on; left out: drain_seconds.")
@_TOKEN
@_JSON
def drain(hub: str, seconds: float | None, token_file: str, json_: bool) -> None:
    """Let a hub take no new jobs, tell those that run, and exit when they have ended or the time is up.

    Jobs that wait for workers end at once. A later drain replaces the deadline of an earlier one.
    """
    found = _asked(hub, token_file, op="drain", seconds=seconds)
    if json_:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_status(found)
