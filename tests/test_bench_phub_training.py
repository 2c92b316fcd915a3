"""The benchmark of PHub's trainings: its networks, its bounds and columns, and that a wrong value is found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.common.layers import QUARTER, count
from bench.phub.networks import NETWORKS
from bench.phub.systems import AFTER, COPYING, FIGURES, MXNET, PBOX, SYSTEMS
from bench.phub.training import bound, images, lines, options_of, runs

ROOT = Path(__file__).resolve().parent.parent
UNABLE = 77


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_bytes_of_table_3(name: str) -> None:
    network = NETWORKS[name]
    layers = network.make(1.0)
    assert count(layers) / 1e6 == pytest.approx(network.millions, rel=0.025)
    assert count(network.make(QUARTER)) == pytest.approx(count(layers) / 16, rel=0.02)
    # A link of 1 Gb/s stands for 56 Gb/s: all takes 56 times as long, and a sixteenth of the parameters a sixteenth.
    paper = network.batch / network.images
    assert network.seconds(QUARTER, 1, 56) == pytest.approx(paper * 56 / 16, rel=0.02)


def test_a_host_that_only_serves_halves_what_a_link_of_a_worker_carries() -> None:
    layers = NETWORKS["ResNet 18"].make(QUARTER)
    whole = 4 * count(layers)
    assert SYSTEMS[MXNET].wire(layers, 8) == pytest.approx(2 * 7 / 8 * whole)
    assert SYSTEMS[PBOX].wire(layers, 8) == pytest.approx(whole)
    assert SYSTEMS[PBOX].wire(layers, 20) == pytest.approx(2 * whole)  # its own link has the time of ten


def row(name: str, workers: int, step: float, **more: Any) -> dict[str, Any]:
    facts = {"group": "cloud", "network": "VGG 19", "name": name, "workers": workers, "link": "250mbit", "batch": 32}
    facts |= {"paper": 0.25, "compute": 0.5, "wire": 2.0, "copies": 0.0, "copy": 1e-9, "after": False, "wrong": 0}
    return {**facts, "cycles": [step], "stalled": [step / 4], "processor": [1.0], "sent": 1e6, **more}


def test_throughput_is_told_on_the_papers_clock_and_over_the_first_system() -> None:
    base, ours = row(MXNET, 8, 2.0), row(PBOX, 7, 1.0, wire=0.8)
    assert images(base, 2.0) == pytest.approx(8 * 32 / 1.0)  # computing and all else is twice as slow here
    assert bound(ours) == 0.8
    assert bound(row(AFTER, 8, 3.0, after=True, copies=0.25)) == 2.75
    found = [line.split() for line in lines({"rows": [base, ours]})]
    told = next(words for words in found if words[2:4] == [PBOX, "7"])
    assert told[2:12] == ["PBox", "7", "1000", "800", "500", "800", "448", "1.75", "2.19", "25"]


def test_pbox_has_hosts_of_its_own_with_a_faster_link() -> None:
    given = ["--groups", "cloud"]
    jobs = [(shape.key, words[-1], link, last) for shape, words, link, last in runs(options_of(given), given)]
    slow, fast = "250mbit", "2.5gbit"
    assert jobs == [("8x1", "8", slow, slow), ("8x1", "7", slow, fast), ("9x1", "8", slow, fast)]
    assert FIGURES["plane"].systems == (COPYING, AFTER)
    assert len(list(runs(options_of(["--groups", "plane"]), []))) == 1


def test_a_spoilt_parameter_is_found() -> None:
    command = [sys.executable, "-m", "bench.phub.training", "--quick", "--plant", "--json", "--groups", "cloud"]
    command += ["--networks", "ResNet 18", "--ways", "PShard,Gloo"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    if ended.returncode == UNABLE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 1, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    assert len(rows) == 2
    assert all(own["wrong"] == 2 * own["parameters"] for own in rows)
