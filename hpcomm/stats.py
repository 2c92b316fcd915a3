"""The values of `stats()`: counts of an exchange, a queue, a checkpointer, local steps and an optimizer on one rank."""

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
    """Counts of one other rank.

    Attributes:
        bytes_sent: to rows that it owns: pushed (also if read in place), forwarded and relayed.
        bytes_received: from it, to rows that this rank owns.
        wait: seconds in which this rank waited for it, alone or among others.
        late: with a quorum: shares of its updates (with a Hierarchy, of the group whose lowest rank it is) that were
            late here.
        dropped: with a quorum on a graph: shares of this rank's updates that it left out, or never got.
    """

    bytes_sent: int
    bytes_received: int
    wait: float
    late: int
    dropped: int


@dataclass(frozen=True)
class Traffic:
    """Bytes that this rank has sent to one other rank in one stage.

    Bytes count as they are on the way: 2 an element in 16 bits. Between ranks that map each other's memory an update
    counts when its owner may read it in place, and parameters count 4 bytes an element. With shared_params a host's
    copy counts once, and not if it is the owner's. Parameters that load_state_dict sends count; the first parameters,
    signals and arguments of rules do not.

    Attributes:
        stage: "push" (a worker's updates), "forward" (folds), "relay" (parameters, to the rank that passes them on) or
            "parameters" (to the worker itself; with split=True also means that all workers get).
        wire: the transport that connects the two ranks: "shm", "tcp", "verbs" or "loop".
    """

    rank: int
    stage: str
    wire: str
    bytes: int


@dataclass(frozen=True)
class CodecStats:
    """Counts of a key's codec on this rank: encodings, as worker and as owner, and decodings of its rows.

    Attributes:
        codec: the value of hpcomm.codec, as text.
        pieces, elements, kept: encoded pieces, their elements, and the elements that were sent.
        bytes_before, bytes: of these elements as float32, and as pieces.
        returned: bytes of pieces that missed their fold, and went back into the residual.
        decoded: bytes of pieces.
        encode, decode: seconds.
        delta_of_pushes, delta_of_folds: the present delta of a Threshold, before it decays; None: unused here.
        gain: seconds a step that the codec saved, by the bandwidth that codec="auto" measured; None: not known.
        why: why codec="auto" chose this codec; "": it was given.
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
        """The part of the elements that was sent, 0 to 1."""
        return self.kept / self.elements if self.elements else 0.0

    @property
    def ratio(self) -> float:
        """Bytes of pieces by bytes of float32."""
        return self.bytes / self.bytes_before if self.bytes_before else 1.0


@dataclass(frozen=True)
class LoadStats:
    """Processor time, system calls and wake-ups of this rank's whole process since the exchange was made. Of hpcomm's
    system calls those for data count, and those of the control channel do not.

    Attributes:
        processor: seconds by thread, in the kernel too: "trainer" made the exchange, and its training counts;
            "hpcomm-core-0", "hpcomm-reactor" and "hpcomm-control" are hpcomm's; "others" are all other threads.
        events: that this exchange's cores have taken: updates, forwards, and with split=True requests about folds.
        sends, receives: of sockets.
        empty: sends and receives that moved nothing.
        polls: epoll_wait and poll.
        futexes: waits and wakes.
        alarms: reads and writes of eventfds, by which sleepers in epoll_wait are woken.
        yields: sched_yield in waits.
        wakeups: sleeps that ended.
        steps: Exchange.version, by which per_step divides.
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
        """System calls of all kinds."""
        return self.sends + self.receives + self.polls + self.futexes + self.alarms + self.yields

    @property
    def per_step(self) -> dict[str, float]:
        """Means of processor (seconds of all threads), calls, wakeups and events in a step; {} before the first."""
        if self.steps == 0:
            return {}
        sums = {"processor": sum(self.processor.values()), "calls": self.calls}
        sums |= {"wakeups": self.wakeups, "events": self.events}
        return {name: value / self.steps for name, value in sums.items()}


# The members of LoadStats that C counts.
CALLS = ("events", "sends", "receives", "empty", "polls", "futexes", "alarms", "yields", "wakeups")


@dataclass(frozen=True)
class ExchangeStats:
    """Counts of an exchange on this rank.

    Attributes:
        pushes, pulls: of keys, by this rank.
        applied: rows of the plan folded and applied by this rank's cores.
        bytes_folded, bytes_written: read from updates, and written to workers, by this rank's cores.
        wait: seconds that this rank waited for pulls, free gradients and full rings.
        busy: seconds that this rank's cores folded, applied and wrote.
        threads: of its engine; 0: the callers' waits do its work.
        progress: the threads that work for this rank's cores, and why, in words.
        usual: a high estimate of push latency, in seconds: mean plus four mean deviations (RFC 6298); 0 before eight
            pushes.
        bytes_sent: to rows of other ranks: pushed, forwarded and relayed. Parameters for workers are in traffic alone.
        reduces: on a graph or with a quorum: folds made here, of each key (and core) by itself.
        whole, torn, stale, missing: on a graph: neighbours' inputs that were whole and new; overwritten while they were
            read; folded before; not there yet (ASAP, section 6.2). Only whole ones are folded, under SSP stale ones of
            models too. With a quorum: updates of workers, or a hierarchy's groups, in the folds made here, and missing.
        dropped: with a quorum: shares of this rank's updates that were late and left out, as a whole or in part.
        dropped_at: the version of the parameters when the last of them came.
        by_inputs: on a graph or with a quorum: how many reduces had 0, 1, 2, ... whole inputs (figure 8).
        by_staleness: under SSP(s) with servers of one stage: how many steps of a key began with the slowest worker
            0, 1, ... s steps behind; where receivers or peers apply under ASYNC too.
        peers: by rank.
        codecs: by key, if it is sent in pieces, or its codec chosen by "auto".
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
        """Bytes of traffic by stage, without empty stages."""
        return _sums((entry.stage, entry.bytes) for entry in self.traffic)

    @property
    def sent_by_wire(self) -> dict[str, int]:
        """Bytes of traffic by wire, without unused wires."""
        return _sums((entry.wire, entry.bytes) for entry in self.traffic)


@dataclass(frozen=True)
class QueueStats:
    """Counts of a queue on this rank: updates, their bytes (read in place or not), seconds spent waiting."""

    sent: int
    received: int
    bytes_sent: int
    bytes_received: int
    wait_send: float
    wait_recv: float


@dataclass(frozen=True)
class CheckpointStats:
    """Counts of a Checkpointer on this rank.

    Attributes:
        saved: checkpoints of which this rank has written its file.
        nbytes: of the last file.
        pause, longest: seconds that the trainer stood still for copies: in all, and for the longest.
        waited: seconds that it waited besides: for the last file, and for copies of ranks that only serve.
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
    """Counts of one fragment on this rank.

    Attributes:
        names, elements: its keys, and their float32 values.
        rounds: exchanges that were begun.
        late: with a quorum: rounds in which an update of this rank missed its fold.
        bytes: that this rank has sent for it, as worker and as owner, as they are on the way.
        hidden: seconds in which exchanges were pending while this rank trained, as it sees them at its steps.
        waited: seconds that training stood still for it: to make and push updates, to wait, and to take parameters.
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
    """Counts of local steps on this rank: its steps, skipped ones too, and its fragments by number."""

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
    """Counts of a DistributedOptimizer on this rank.

    Attributes:
        steps: that were applied.
        skipped: steps whose gradients were not finite, with a GradScaler.
        in_place: gradients that autograd had written where the exchange reads them.
        copied, copied_bytes: gradients that were copied there from torch's memory.
        converted: gradients that were copied with a change of dtype (16-bit parameters).
        dense: sparse gradients that were made dense.
        params_copied: parameters that were copied out of the exchange: 16-bit ones, and ones that torch has put
            elsewhere.
        early: keys that apply="backward" sent while the backward pass ran.
        wait: seconds that layers waited for their parameters, or step and wait for others.
        bytes_out, bytes_in, seconds_out, seconds_in: of copies of gradients from a device to the host's memory, and of
            parameters back.
        copy_wait: seconds that this rank waited for gradients to come, or that its device stood still for parameters.
        state_bytes: of the optimizer's state and float32 values of 16-bit parameters, which owners have in the host's
            memory; a rank that steps by itself holds as many.
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
        """The part of the seconds of copies for which nothing waited; NaN without copies."""
        took = self.seconds_out + self.seconds_in
        return max(0.0, 1 - self.copy_wait / took) if took else math.nan


def _sums(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, n in counts:
        sums[name] = sums.get(name, 0) + n
    return sums
