"""The values of `stats()`: one rank's counts for an exchange, a queue, a checkpointer, local steps or an optimizer.

A row is one stage of a chunk; a share is all rows of one key on one core; a piece is the bytes that a codec makes from
a part of an update.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = [
    "CheckpointStats",
    "CodecStats",
    "ExchangeStats",
    "FragmentStats",
    "LoadStats",
    "LocalStats",
    "OptimizerStats",
    "PeerStats",
    "QueueStats",
    "Traffic",
]


@dataclass(frozen=True)
class PeerStats:
    """This rank's counts about one other rank, the peer.

    Attributes:
        bytes_sent: bytes that this rank sent to rows of the peer: pushed (also if the peer read them in place),
            forwarded and relayed.
        bytes_received: bytes that the peer sent to rows of this rank.
        wait: seconds that this rank waited for the peer, alone or among others.
        late: with a quorum: how many shares of the peer's updates were late here. With a Hierarchy: of the updates of
            the group whose lowest rank is the peer.
        dropped: with a quorum on a graph: how many shares of this rank's updates the peer left out, or never got.
    """

    bytes_sent: int
    bytes_received: int
    wait: float
    late: int
    dropped: int


@dataclass(frozen=True)
class Traffic:
    """Bytes that this rank has sent to one other rank in one stage.

    Bytes count as they are on the wire: 2 for an element in 16 bits. Between ranks that map each other's memory, an
    update counts when its owner may read it in place, and parameters count 4 bytes an element. With shared_params the
    copy of a host counts once, and not at all if it is the owner's copy. Parameters that load_state_dict sends count;
    the first parameters, signals and rule arguments do not.

    Attributes:
        rank: the other rank.
        stage: "push" (updates of a worker), "forward" (folds), "relay" (parameters, to the rank that passes them on) or
            "parameters" (parameters, to the worker that uses them; with split=True also the means that all workers
            get).
        wire: the transport between the two ranks: "shm", "tcp", "verbs" or "loop".
    """

    rank: int
    stage: str
    wire: str
    bytes: int


@dataclass(frozen=True)
class CodecStats:
    """This rank's counts about a key's codec: its encodings as worker and as owner, and the decodings of its rows.

    Attributes:
        codec: the repr of the codec, a value of hpcomm.codec.
        pieces, elements, kept: the number of encoded pieces, of their elements, and of the elements that were sent.
        bytes_before, bytes: bytes of these elements as float32, and of the pieces.
        returned: bytes of the pieces that missed their fold, so that their values went back into the residual.
        decoded: bytes of the pieces that this rank decoded.
        encode, decode: seconds spent encoding and decoding.
        delta_of_pushes, delta_of_folds: the present delta of a Threshold for pushes and for folds, before decay; None:
            not used here.
        gain: seconds a step that the codec saves, at the bandwidth that codec="auto" measured; None: not known.
        why: the reason why codec="auto" chose this codec; "": the user chose it.
    """

    codec: str
    pieces: int
    elements: int
    kept: int
    bytes_before: int
    bytes: int
    returned: int
    decoded: int
    encode: float
    decode: float
    delta_of_pushes: float | None
    delta_of_folds: float | None
    gain: float | None
    why: str

    @property
    def density(self) -> float:
        """The fraction of the elements that was sent, 0 to 1."""
        return self.kept / self.elements if self.elements else 0.0

    @property
    def ratio(self) -> float:
        """The bytes of the pieces divided by the bytes of their elements as float32."""
        return self.bytes / self.bytes_before if self.bytes_before else 1.0


@dataclass(frozen=True)
class LoadStats:
    """Processor time, system calls and wake-ups of this rank's whole process since the exchange was made. hpcomm's
    system calls for data count; its system calls for the control channel do not.

    Attributes:
        processor: seconds by thread, with its time in the kernel. "trainer" is the thread that made the exchange, with
            its training; "hpcomm-core-0", "hpcomm-reactor" and "hpcomm-control" are hpcomm's threads; "others" are all
            other threads.
        events: events that this exchange's cores have handled: updates, forwards, and with split=True requests about
            folds.
        sends, receives: calls that send to sockets, and that receive from them.
        empty: sends and receives that moved no byte.
        polls: calls of epoll_wait and poll.
        futexes: futex calls, to wait or to wake.
        alarms: reads and writes of eventfds, which wake threads that sleep in epoll_wait.
        yields: calls of sched_yield in waits.
        wakeups: sleeps that ended.
        steps: the value of Exchange.version(); per_step divides by it.
    """

    processor: Mapping[str, float]
    events: int
    sends: int
    receives: int
    empty: int
    polls: int
    futexes: int
    alarms: int
    yields: int
    wakeups: int
    steps: int

    @property
    def calls(self) -> int:
        """The number of system calls of all kinds."""
        return self.sends + self.receives + self.polls + self.futexes + self.alarms + self.yields

    @property
    def per_step(self) -> dict[str, float]:
        """Means for one step of processor (seconds of all threads), calls, wakeups and events; {} before the first
        step."""
        if self.steps == 0:
            return {}
        sums = {"processor": sum(self.processor.values()), "calls": self.calls}
        sums |= {"wakeups": self.wakeups, "events": self.events}
        return {name: value / self.steps for name, value in sums.items()}


# The fields of LoadStats that C counts.
CALLS = ("events", "sends", "receives", "empty", "polls", "futexes", "alarms", "yields", "wakeups")


@dataclass(frozen=True)
class ExchangeStats:
    """This rank's counts about an exchange.

    Attributes:
        pushes, pulls: how many keys this rank pushed, and pulled.
        applied: how many rows this rank's cores folded and applied.
        bytes_folded, bytes_written: bytes that this rank's cores read from updates, and wrote to workers.
        wait: seconds that this rank waited for pulls, for free gradients and for room in full rings.
        busy: seconds that this rank's cores folded, applied and wrote.
        threads: the number of the exchange's threads; 0: its work is done inside the callers' waits.
        progress: which threads work for this rank's cores, and why, as text.
        usual: a high estimate of push latency, in seconds: mean plus four mean deviations (RFC 6298); 0 before eight
            pushes.
        bytes_sent: bytes that this rank pushed, forwarded and relayed to rows of other ranks. Parameters for workers
            count only in traffic.
        reduces: on a graph or with a quorum: the number of folds here; each key, and core, counts by itself.
        whole, torn, stale, missing: on a graph: the inputs from neighbours that were whole and new; that were
            overwritten while they were read; that had been folded before; and that had not come (ASAP, section 6.2).
            Only whole inputs are folded; under SSP with models, stale ones too. With a quorum: whole and missing count
            the updates of workers, or of a hierarchy's groups, in the folds made here.
        dropped: with a quorum: how many shares of this rank's updates were late, and were left out as a whole or in
            part.
        dropped_at: the version of the parameters when the last dropped share came.
        by_inputs: on a graph or with a quorum: how many reduces had 0, 1, 2, ... whole inputs (figure 8).
        by_staleness: under SSP(s), with servers and plans of one stage: how many steps of a key began while the slowest
            worker was 0, 1, ... s steps behind. If receivers or peers apply, also under ASYNC.
        peers: a PeerStats for each rank.
        traffic: a Traffic for each rank, stage and wire.
        load: the LoadStats of the process.
        codecs: for each key that is sent in pieces, or whose codec "auto" chose, its CodecStats.
    """

    pushes: int
    pulls: int
    applied: int
    bytes_folded: int
    bytes_written: int
    wait: float
    busy: float
    threads: int
    progress: str
    usual: float
    bytes_sent: int
    reduces: int
    whole: int
    torn: int
    stale: int
    missing: int
    dropped: int
    dropped_at: int
    by_inputs: tuple[int, ...]
    by_staleness: tuple[int, ...]
    peers: tuple[PeerStats, ...]
    traffic: tuple[Traffic, ...]
    load: LoadStats
    codecs: Mapping[str, CodecStats]

    @property
    def sent_by_stage(self) -> dict[str, int]:
        """Bytes of traffic for each stage that has any."""
        return _sums((entry.stage, entry.bytes) for entry in self.traffic)

    @property
    def sent_by_wire(self) -> dict[str, int]:
        """Bytes of traffic for each wire that has any."""
        return _sums((entry.wire, entry.bytes) for entry in self.traffic)


@dataclass(frozen=True)
class QueueStats:
    """This rank's counts about a queue: updates sent and received, their bytes (also if read in place), and seconds
    that sends and receives waited."""

    sent: int
    received: int
    bytes_sent: int
    bytes_received: int
    wait_send: float
    wait_recv: float


@dataclass(frozen=True)
class CheckpointStats:
    """This rank's counts about a Checkpointer.

    Attributes:
        saved: the number of checkpoints whose file this rank has written.
        nbytes: bytes of the last file.
        pause, longest: seconds that the trainer stood still for copies, in all, and for the longest copy.
        waited: further seconds that the trainer waited for the last file, and for copies on ranks that only serve.
        writing: seconds that the thread wrote and synced files.
    """

    saved: int
    nbytes: int
    pause: float
    longest: float
    waited: float
    writing: float


@dataclass(frozen=True)
class FragmentStats:
    """This rank's counts about one fragment of local steps.

    Attributes:
        names, elements: the fragment's keys, and the number of their float32 values.
        rounds: the number of exchanges begun.
        late: with a quorum: rounds in which an update of this rank missed its fold.
        bytes: bytes that this rank has sent for the fragment, as worker and as owner, counted on the wire.
        hidden: seconds in which an exchange was pending while this rank trained, sampled at its steps.
        waited: seconds that training stood still for the fragment: to make and push updates, to wait, and to take
            parameters.
    """

    names: tuple[str, ...]
    elements: int
    rounds: int
    late: int
    bytes: int
    hidden: float
    waited: float


@dataclass(frozen=True)
class LocalStats:
    """This rank's counts about local steps: the number of steps, skipped ones too, and the FragmentStats in order."""

    steps: int
    fragments: tuple[FragmentStats, ...]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.fragments)

    @property
    def hidden(self) -> float:
        return sum(one.hidden for one in self.fragments)

    @property
    def waited(self) -> float:
        return sum(one.waited for one in self.fragments)


@dataclass(frozen=True)
class OptimizerStats:
    """This rank's counts about a DistributedOptimizer.

    Attributes:
        steps: the number of steps that were applied.
        skipped: with a GradScaler: steps that were left out, as a gradient was not finite.
        in_place: gradients that autograd wrote directly into the exchange's memory.
        copied, copied_bytes: gradients that were copied from torch's memory into the exchange's, and their bytes.
        converted: gradients whose dtype was changed by the copy (16-bit parameters).
        dense: sparse gradients that were made dense.
        params_copied: parameters that were copied out of the exchange: 16-bit ones, and ones that torch keeps in other
            memory.
        early: keys that apply="backward" sent while the backward pass ran.
        wait: seconds that layers waited for their parameters, or that step and wait waited for other ranks.
        bytes_out, bytes_in, seconds_out, seconds_in: bytes and seconds of the copies of gradients from a device to the
            host's memory, and of parameters back.
        copy_wait: seconds that this rank waited for gradients to arrive, or that its device stood still for parameters.
        state_bytes: bytes of the optimizer's state and of the float32 values of 16-bit parameters, which owners keep in
            the host's memory. A rank that steps by itself keeps as many.
    """

    steps: int
    skipped: int
    in_place: int
    copied: int
    copied_bytes: int
    converted: int
    dense: int
    params_copied: int
    early: int
    wait: float
    bytes_out: int
    bytes_in: int
    seconds_out: float
    seconds_in: float
    copy_wait: float
    state_bytes: int

    @property
    def hidden(self) -> float:
        """The fraction of the copies' seconds during which nothing waited for them; NaN without copies."""
        took = self.seconds_out + self.seconds_in
        return max(0.0, 1 - self.copy_wait / took) if took else math.nan


def _sums(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, n in counts:
        sums[name] = sums.get(name, 0) + n
    return sums
