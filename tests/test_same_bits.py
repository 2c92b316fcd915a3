"""The judge of a rewrite by bits: a build has the facts of itself, and a wrong one is told."""

import json
from pathlib import Path
from typing import Any

import pytest
import same_bits
from same_bits_jobs import draw

import hpcomm

HERE = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def worker() -> Any:
    if not Path(hpcomm.__file__).is_relative_to(HERE):
        pytest.skip("hpcomm is not built in place")
    found = same_bits.Worker(HERE)
    yield found
    found.close()


def test_a_build_has_its_own_facts_twice_and_a_wrong_bit_is_told(worker: Any) -> None:
    job = next(job for job in map(draw, range(1, 200)) if job["family"] == "async" and job["drive"] == "turns")
    facts = worker.run(job)
    assert facts["used"] == ["async"]
    assert same_bits.differences(job, facts, worker.run(job)) == []
    name = next(name for name in facts["facts"] if " step k0" in name)
    wrong = {**facts, "facts": {**facts["facts"], name: "other bits"}}
    assert [told.partition(":")[0] for told in same_bits.differences(job, facts, wrong)] == [name]


def test_a_worker_that_crashes_or_hangs_is_told_and_goes_on(worker: Any) -> None:
    job = draw(1)
    assert "crashed" in worker.run({**job, "drive": "no such drive"})["facts"]
    assert worker.run(job, seconds=0.0)["facts"] == {"crashed": "hangs: it was killed"}
    assert worker.run(job)["facts"].keys() != {"crashed"}


def test_a_job_is_drawn_from_its_seed_alone() -> None:
    assert [json.dumps(draw(seed)) for seed in range(50)] == [json.dumps(draw(seed)) for seed in range(50)]
