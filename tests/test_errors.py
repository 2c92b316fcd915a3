"""The exceptions: their tree, what they carry, and that every status has one."""

import pickle
import re
from pathlib import Path

import pytest

import hpcomm
from hpcomm import errors

TREE = {
    "InvalidArgument": ValueError,
    "ConfigError": ValueError,
    "NotSupported": Exception,
    "TransportError": Exception,
    "PeerFailed": Exception,
    "Timeout": TimeoutError,
    "AuthError": Exception,
    "OutOfMemory": MemoryError,
}

NOT_OF_C = {"CheckpointError": OSError}


def statuses() -> dict[str, int]:
    header = Path(hpcomm.__file__).parent / "include/hpcomm/error.h"
    return {
        name: int(value) for name, value in re.findall(r"(HPC_ERR_\w+) = (-\d+)", header.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize(("name", "also"), [*TREE.items(), *NOT_OF_C.items()])
def test_tree(name: str, also: type[Exception]) -> None:
    kind = getattr(hpcomm, name)
    assert issubclass(kind, hpcomm.HpcommError)
    assert issubclass(kind, also)
    assert f"── {name}" in (errors.__doc__ or "")


def test_every_status_has_its_own_exception() -> None:
    kinds = [type(errors.from_failure(errors.Failure(status, "why"))) for status in statuses().values()]
    assert len(kinds) == len(set(kinds)) == len(TREE)
    assert hpcomm.HpcommError not in kinds


def test_unknown_status_is_told() -> None:
    error = errors.from_failure(errors.Failure(-99, "something new"))
    assert type(error) is hpcomm.HpcommError
    assert "-99" in str(error)


def test_what_they_carry() -> None:
    failure = errors.Failure(-5, "rank 0: recv: rank 2 has ended", op="recv", ranks=(2,), waiting_for=(1, 2), left=(1,))
    gone = errors.from_failure(failure)
    assert isinstance(gone, hpcomm.PeerFailed)
    assert (gone.ranks, gone.left, gone.op, gone.waiting_for) == ((2,), (1,), "recv", (1, 2))
    ends = (hpcomm.errors.Culprit(4, "stopped"),)
    late = errors.from_failure(errors.Failure(-6, "too late", op="flush", waiting_for=(3,), culprits=ends))
    assert isinstance(late, hpcomm.Timeout)
    assert (late.op, late.waiting_for, late.culprits) == ("flush", (3,), ends)
    path = errors.from_failure(errors.Failure(-4, "put: cannot reach", transport="shm", peer=4))
    assert isinstance(path, hpcomm.TransportError)
    assert (path.transport, path.peer, path.detail) == ("shm", 4, "cannot reach")


def test_path_of_a_checkpoint() -> None:
    error = pickle.loads(pickle.dumps(hpcomm.CheckpointError("cannot read /a/b: Input/output error", path="/a/b")))
    assert type(error) is hpcomm.CheckpointError
    assert (str(error), error.path) == ("cannot read /a/b: Input/output error", "/a/b")


@pytest.mark.parametrize("status", [-4, -5, -6])
def test_pickle(status: int) -> None:
    """multiprocessing carries exceptions from process to process."""
    failure = errors.Failure(
        status,
        "recv: why",
        op="recv",
        transport="shm",
        peer=1,
        ranks=(1,),
        waiting_for=(1, 2),
        left=(3,),
        culprits=(hpcomm.errors.Culprit(1, "computing", 4.8, 17),),
    )
    error = errors.from_failure(failure)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == "recv: why"
    assert vars(again) == vars(error)
