"""The metrics of a hub, for Prometheus.

Values by job have the labels namespace and job_name, since Prometheus itself has a label job. A quota of its namespace
bounds how many jobs there are at a time. The values go when the job ends; counters by namespace go on.
"""

import asyncio
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import CheckpointError
from .config import Namespace
from .exposition import CONTENT_TYPE, Page, Sample
from .handle import HubAddress
from .meeting import HostedJob
from .store import Saved, Store
from .web import Web
from .work import HubWork

PATH = "/metrics"
_READ_SECONDS = 2.0  # for the folder of saved state: a slower disk lets a page have the numbers of the page before

_PLAIN = {  # counts of the hub without a reason
    "jobs created": ("hpcomm_hub_jobs_created", "Jobs that were created."),
    "jobs done": ("hpcomm_hub_jobs_done", "Jobs that all of their workers have left."),
    "saves": ("hpcomm_hub_saves", "Exchanges that were saved."),
    "exchanges restored": ("hpcomm_hub_restores", "Exchanges that began with saved state."),
}
_BY_REASON = {  # counts whose names begin so; the rest of the name is the reason
    "refused": ("hpcomm_hub_refusals", "Connections, requests, exchanges and saves that the hub refused, by reason."),
    "ended": ("hpcomm_hub_jobs_failed", "Jobs that failed, by the kind of the error, or that the owner ended."),
    "ended before it ran": ("hpcomm_hub_jobs_never_ran", "Jobs that ended before they ran, by the kind of the error."),
}
_STRANGERS = (
    "strangers",
    "too many strangers",
    "unknown namespace",
    "wrong token",
    "calls of no job",
    "calls of strangers",
    "requests for metrics",
)
_STATES = ("waits", "runs", "ends")
_WORK = (
    ("events", "pushes", "Pushes of keys, and with a quorum requests about folds; a key counts on each of its cores"),
    ("applied", "folds", "Rows that cores folded and applied"),
    ("bytes_folded", "folded_bytes", "Bytes of updates that cores read"),
    ("bytes_written", "written_bytes", "Bytes that cores wrote to workers"),
    ("busy", "busy_seconds", "Seconds in which cores folded, applied and wrote"),
)


class Metrics:
    """The server of a hub's metrics, with its counts from page to page. All calls are of the hub's own thread.

    Args:
        status: tells of the hub, as `hpcomm hub status`.
        spaces: returns the namespaces, by name.
        jobs: the hub's jobs.
        store: the saved state of jobs; None if the hub keeps none.
        count: counts an event by its name.
    """

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        spaces: Callable[[], Mapping[str, Namespace]],
        jobs: Mapping[tuple[str, str], HostedJob],
        store: Store | None,
        count: Callable[[str], None],
    ) -> None:
        self._status, self._spaces, self._jobs, self._store = status, spaces, jobs, store
        self._started = time.time()
        self._ended: defaultdict[str, HubWork] = defaultdict(HubWork)  # by namespace
        self._saved: list[tuple[dict[str, str], Saved, int]] = []  # labels, the state, and the Unix time of the save
        self._reads: asyncio.Task[None] | None = None
        self._web = Web(PATH, CONTENT_TYPE, self.page, partial(count, "refused: requests for metrics"))

    async def start(self, where: HubAddress) -> str:
        """Serves the metrics; returns their address. Raises ConfigError if the hub cannot listen there."""
        return f"http://{await self._web.start(where)}{PATH}"

    async def close(self) -> None:
        await self._web.close()

    def ended(self, job: HostedJob) -> None:
        """Keeps the work for a job that has ended."""
        if job.tenant is not None:
            self._ended[job.namespace] += job.tenant.work

    async def page(self) -> str:
        await self._read_saved()
        page = Page()
        status, jobs = self._status(), list(self._jobs.values())
        _add_hub(page, status, self._started)
        _add_namespaces(page, status["namespaces"], jobs)
        self._add_saved(page)
        _add_jobs(page, jobs)
        self._add_work(page, jobs)
        _add_counts(page, status["counts"])
        return str(page)

    # ---- saved state -----------------------------------------------------------------------------------------------

    async def _read_saved(self) -> None:
        """Reads the folder, in a thread, one at a time; waits only so long for it."""
        if self._store is None:
            return
        if self._reads is None or self._reads.done():
            self._reads = asyncio.create_task(self._read())
        await asyncio.wait([self._reads], timeout=_READ_SECONDS)

    async def _read(self) -> None:
        assert self._store is not None
        with suppress(CheckpointError, OSError):  # the folder cannot be read now
            found, now = await asyncio.to_thread(self._store.saved), time.time()
            self._saved = [(_labels(one.title), one, round(now - one.seconds)) for one in found]

    def _add_saved(self, page: Page) -> None:
        if self._store is None:
            return
        spaces = self._spaces()
        have, nbytes = Counter[str](), Counter[str]()
        for labels, one, _ in self._saved:
            have[labels["namespace"]] += 1
            nbytes[labels["namespace"]] += one.nbytes
        names = sorted({*spaces, *have})
        page.gauge("hpcomm_hub_saved_jobs", "Jobs that have saved state.", _of(names, have))
        page.gauge("hpcomm_hub_saved_bytes", "Bytes of saved state.", _of(names, nbytes))
        most, disk = ({name: getattr(one, what) for name, one in spaces.items()} for what in ("checkpoints", "disk"))
        page.gauge("hpcomm_hub_saved_jobs_quota", "The most jobs that may have saved state.", _of(most, most))
        page.gauge("hpcomm_hub_saved_quota_bytes", "The most bytes of saved state.", _of(disk, disk))
        about = "The newest step that a job has saved."
        page.gauge("hpcomm_hub_job_saved_step", about, [(labels, one.step) for labels, one, _ in self._saved])
        about = "The Unix time of a job's newest save."
        times = [(labels, when) for labels, _, when in self._saved]
        page.gauge("hpcomm_hub_job_saved_timestamp_seconds", about, times)

    # ---- the work for exchanges ------------------------------------------------------------------------------------

    def _add_work(self, page: Page, jobs: list[HostedJob]) -> None:
        by_job = [(job, job.tenant.work) for job in jobs if job.tenant is not None]
        names = {*self._spaces(), *self._ended, *(job.namespace for job, _ in by_job)}
        by_space = {name: self._ended.get(name, HubWork()) for name in sorted(names)}
        for job, work in by_job:
            by_space[job.namespace] += work
        for field, name, about in _WORK:
            spaces = [({"namespace": space}, getattr(work, field)) for space, work in by_space.items()]
            page.counter(f"hpcomm_hub_{name}", f"{about}; of all jobs of a namespace.", spaces)
            own = [(_labels(job.title), getattr(work, field)) for job, work in by_job]
            page.counter(f"hpcomm_hub_job_{name}", f"{about}; of a job that runs.", own)


def _add_hub(page: Page, status: Mapping[str, Any], started: float) -> None:
    """Adds the metrics of the whole hub."""

    def one(name: str, about: str, value: float) -> None:
        page.gauge(name, about, [({}, value)])

    page.gauge("hpcomm_hub_info", "The hub's version; always 1.", [({"version": status["version"]}, 1)])
    one("hpcomm_hub_uptime_seconds", "Seconds since the hub began.", status["seconds"])
    one("hpcomm_hub_cores", "Threads that fold and apply, for all jobs together.", status["cores"])
    one("hpcomm_hub_memory_limit_bytes", "The most bytes that the hub holds, for all jobs.", status["memory_quota"])
    drains = status["drains_in"]
    one("hpcomm_hub_draining", "1 while the hub drains and takes no new jobs, else 0.", int(drains is not None))
    if drains is not None:
        one("hpcomm_hub_drain_left_seconds", "Seconds until the hub ends the jobs that are left.", drains)
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    about = "Processor time of all threads."
    page.counter("process_cpu_seconds", about, [({}, used.ru_utime + used.ru_stime)])
    one("process_start_time_seconds", "The Unix time at which the hub began.", started)
    one("process_resident_memory_bytes", "Memory of the process.", status["resident"])
    one("hpcomm_hub_threads", "Threads of the process.", status["threads"])
    one("process_open_fds", "Descriptors of the process.", status["descriptors"])
    one("process_max_fds", "The most descriptors that the process may have.", float("inf") if most < 0 else most)


def _add_namespaces(page: Page, spaces: Mapping[str, Mapping[str, Any]], jobs: list[HostedJob]) -> None:
    """Adds what each namespace holds, and its quotas."""
    states = Counter((job.namespace, job.state) for job in jobs)
    names = sorted({*spaces, *(job.namespace for job in jobs)})
    by_state = [({"namespace": name, "state": state}, states[name, state]) for name in names for state in _STATES]
    page.gauge("hpcomm_hub_jobs", "Jobs, by state: jobs that wait for workers, run, or end.", by_state)
    workers, exchanges = Counter[str](), Counter[str]()
    for job in jobs:
        if job.tenant is not None:
            workers[job.namespace] += job.tenant.terms.workers
            exchanges[job.namespace] += job.tenant.exchanges
    page.gauge("hpcomm_hub_workers", "Workers of jobs that run.", _of(names, workers))
    page.gauge("hpcomm_hub_exchanges", "Exchanges that the hub serves.", _of(names, exchanges))
    for name, key, about in (
        ("jobs_quota", "job_quota", "The most jobs of a namespace."),
        ("memory_bytes", "memory", "Bytes that exchanges and saves of a namespace hold."),
        ("memory_quota_bytes", "memory_quota", "The most bytes that exchanges and saves of a namespace may hold."),
        ("descriptors", "descriptors", "Descriptors that count for a namespace."),
        ("descriptors_quota", "descriptor_quota", "The most descriptors of a namespace."),
    ):
        page.gauge(f"hpcomm_hub_{name}", about, _of(spaces, {space: one[key] for space, one in spaces.items()}))


def _add_jobs(page: Page, jobs: list[HostedJob]) -> None:
    """Adds what each job holds."""

    def each(name: str, about: str, values: Iterable[float]) -> None:
        page.gauge(f"hpcomm_hub_job_{name}", about, zip(map(_labels, titles), values, strict=True))

    titles, tenants = [job.title for job in jobs], [job.tenant for job in jobs]
    each("age_seconds", "Seconds since a job was created.", [time.monotonic() - job.since for job in jobs])
    each("workers", "Workers of a job; 0 before the first one.", [job.first.size if job.first else 0 for job in jobs])
    missing = [0 if job.tenant else len(job.missing) for job in jobs]
    each("missing_workers", "Workers for which a job still waits, once the first one has come.", missing)
    each("exchanges", "Exchanges that the hub serves for a job.", [one.exchanges if one else 0 for one in tenants])
    each("memory_bytes", "Bytes that these exchanges hold.", [one.memory if one else 0 for one in tenants])


def _add_counts(page: Page, counts: Mapping[str, int]) -> None:
    """Adds the hub's counts of events."""
    for what, (name, about) in _PLAIN.items():
        page.counter(name, about, [({}, counts.get(what, 0))])
    by_reason: dict[str, dict[str, int]] = {"refused": dict.fromkeys(_STRANGERS, 0)}
    for what, n in counts.items():
        kind, _, reason = what.partition(": ")
        by_reason.setdefault(kind, {})[reason] = n
    for kind, (name, about) in _BY_REASON.items():
        page.counter(name, about, [({"reason": reason}, n) for reason, n in by_reason.get(kind, {}).items()])


def _labels(title: str) -> dict[str, str]:
    space, _, name = title.partition("/")
    return {"namespace": space, "job_name": name}


def _of(names: Iterable[str], values: Mapping[str, float]) -> Iterator[Sample]:
    return (({"namespace": name}, values.get(name, 0)) for name in names)
