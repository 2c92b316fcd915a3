"""Runs cases of bench.parameter_flow on namespaces as hosts (tests/cluster/hosts.py)."""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.common.launch import ROOT, attend, mpirun
from bench.parameter_flow.cases import Case
from hpcomm.bench.rows import Row

sys.path.insert(0, str(ROOT / "tests"))
from cluster.hosts import HEAD, Cluster

LIMIT = 3600.0  # seconds of one job
Beside = Callable[[Cluster], AbstractContextManager[object]]


def run(
    cases: Sequence[Case],
    *,
    title: str,
    hosts: int,
    rate: str,
    burst: str,
    quiet: bool,
    limit: float = LIMIT,
    beside: Beside | None = None,
) -> list[Row]:
    """Runs all cases in one job and returns their rows. beside: other work on the hosts. limit: seconds, after which
    only the finished cases are returned."""
    with tempfile.TemporaryDirectory() as folder, Cluster(hosts, rate=rate, burst=burst) as cluster:
        spec, output = Path(folder, "cases.json"), Path(folder, "rows.json")
        spec.write_text(json.dumps([asdict(case) for case in cases]), encoding="utf-8")
        command = [*cluster.mpirun(path=mpirun(sys.executable)), sys.executable, "-m", "bench.parameter_flow.training"]
        command += ["--cases", str(spec), "-J", str(output)]
        status = -1
        with beside(cluster) if beside else nullcontext(), suppress(SystemExit) if limit < LIMIT else nullcontext():
            status = attend(command, title, quiet=quiet, limit=limit, popen=partial(cluster.popen, HEAD))
        found: list[Row] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else []
        if len(found) < len(cases):
            print(f"# {title}: {len(found)} of {len(cases)} trainings, status {status}", file=sys.stderr, flush=True)
        if not found or (status and limit == LIMIT):
            raise SystemExit(f"parameter_flow: {title}: the ranks ended with status {status}")
        return found
