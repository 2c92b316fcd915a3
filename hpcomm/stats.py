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
        bytes_sent: bytes that this rank pushed, forwarded and relayed to rows of the peer. A push that the peer reads
            from this rank's memory counts too.
        bytes_received: bytes that the peer pushed, forwarded and relayed to rows of this rank.
        wait: seconds that this rank waited for the peer, alone or together with other ranks.
        late: with a quorum, how many shares of the peer's updates came too late for a fold on this rank. With a
            Hierarchy an update comes from a group, which counts for its lowest rank.
        dropped: with a quorum on a graph, how many shares of this rank's updates the peer left out or never got.
    """

    bytes_sent: int
    bytes_received: int
    wait: float
    late: int
    dropped: int


@dataclass(frozen=True)
class Traffic:
    """Bytes that this rank has sent to one other rank in one stage.

    Bytes count as encoded for the wire, e.g. 2 for an element in 16 bits. Between ranks that map each other's memory,
    an update counts when its owner may read it, and parameters count 4 bytes an element. With shared_params the copy
    that a host shares counts once, and not at all if it is the owner's copy. Parameters sent by load_state_dict count.
    The first parameters, signals and rule arguments do not count.

    Attributes:
        rank: the other rank.
        stage: the kind of the sent data. "push": updates of a worker. "forward": folds. "relay": parameters, to a rank
            that passes them on. "parameters": parameters, to a worker that uses them; with split=True also the means
            that workers get.
        wire: the transport between the two ranks: "shm", "tcp", "verbs" or "loop".
    """

    rank: int
    stage: str
    wire: str
    bytes: int


@dataclass(frozen=True)
class CodecStats:
    """This rank's counts about a key's codec: encodings by this rank as a worker and as an owner, and decodings in rows
    that it owns.

    Attributes:
        codec: the repr of the codec, a value of hpcomm.codec.
        pieces: how many pieces were encoded.
        elements: how many elements the encoded parts of updates have.
        kept: how many of these elements were sent.
        bytes_before: bytes of these elements as float32.
        bytes: bytes of the encoded pieces.
        returned: bytes of the pieces that missed their fold; their values went back into the residual.
        decoded: bytes of the pieces that this rank decoded.
        encode: seconds spent on encoding.
        decode: seconds spent on decoding.
        delta_of_pushes: the present delta of a Threshold for this rank's pushes, before decay; None: this rank pushes
            none with a Threshold.
        delta_of_folds: the same for folds that this rank sends.
        gain: how many seconds the codec saves in a step, at the bandwidth that codec="auto" measured; None: not known.
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
        processor: a dict from threads to their processor seconds, in user mode and in the kernel together. "trainer" is
            the thread that made the exchange; its training counts too. "hpcomm-core-0", "hpcomm-reactor" and
            "hpcomm-control" are hpcomm's threads, which all contexts of the process share. "others" are all other
            threads.
        events: events that this exchange's cores have handled: updates, forwards, and with split=True requests about
            folds.
        sends: calls that send to a socket.
        receives: calls that receive from a socket.
        empty: how many of these calls moved no byte.
        polls: calls of epoll_wait and poll.
        futexes: futex calls, to wait or to wake.
        alarms: reads and writes of eventfds, which wake threads that sleep in epoll_wait.
        yields: calls of sched_yield in waits.
        wakeups: sleeps that ended.
        steps: the value of Exchange.version(), by which LoadStats.per_step() divides.
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
        """A dict of means for one step, with the entries "processor" (seconds of all threads), "calls", "wakeups" and
        "events"; {} before the first step."""
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
        pushes: how many times this rank pushed a key.
        pulls: how many times this rank pulled a key.
        applied: how many rows this rank's cores folded and applied.
        bytes_folded: bytes of updates that this rank's cores read.
        bytes_written: bytes that this rank's cores wrote to workers.
        wait: seconds that this rank waited in pulls, for free gradient slots, and for room in full rings of events.
        busy: seconds that this rank's cores folded, applied and wrote.
        threads: the number of threads that work for the exchange, and perhaps for other exchanges of its Engine; 0: the
            exchange works inside the calls that wait.
        progress: a text that says which threads work for this rank's cores, and why.
        usual: a high estimate of push latency, in seconds: mean plus four mean deviations (RFC 6298); 0 before eight
            pushes.
        bytes_sent: bytes that this rank pushed, forwarded and relayed to rows of other ranks. Parameters for workers
            count only in traffic.
        reduces: on a graph or with a quorum, the number of folds on this rank. Each key on each core counts separately.
        whole: on a graph, inputs from neighbours that were whole and new (ASAP, section 6.2). With a quorum, updates of
            workers, or of a hierarchy's groups, that were in folds on this rank.
        torn: on a graph, inputs that were overwritten while they were read, and so were not folded.
        stale: on a graph, inputs that had been folded before. They are folded again only under SSP with models.
        missing: inputs that had not come when the fold was made.
        dropped: with a quorum, how many shares of this rank's updates were late, and were left out of the fold as a
            whole or in part.
        dropped_at: the version that the parameters had when the last dropped share came.
        by_inputs: on a graph or with a quorum, by_inputs[i] is how many reduces had i whole inputs (figure 8 of ASAP).
        by_staleness: under SSP(s) with servers and plans of one stage, by_staleness[i] is how many steps of a key began
            while the slowest worker was i steps behind. If receivers or peers apply the rule, this is also counted
            under ASYNC.
        peers: peers[i] is the PeerStats about rank i.
        traffic: a Traffic for each rank, stage and wire.
        load: the LoadStats of the process.
        codecs: a dict from keys to their CodecStats. It has the keys that are sent in pieces, or whose codec "auto"
            chose.
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
        """A dict from stages to the bytes of their traffic; stages without traffic are left out."""
        return _sums((entry.stage, entry.bytes) for entry in self.traffic)

    @property
    def sent_by_wire(self) -> dict[str, int]:
        """A dict from wires (transports) to the bytes of their traffic; wires without traffic are left out."""
        return _sums((entry.wire, entry.bytes) for entry in self.traffic)


@dataclass(frozen=True)
class QueueStats:
    """This rank's counts about a queue: updates sent and received, their bytes (a peer that reads an update from this
    rank's memory counts too), and the seconds that sends and receives waited."""

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
        pause: seconds that the trainer stood still for all copies together.
        longest: seconds that the trainer stood still for the longest copy.
        waited: seconds that the trainer also waited for the last file, and for copies on ranks that only serve.
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
        names: the names of the fragment's keys.
        elements: how many float32 values these keys have together.
        rounds: how many times the fragment's exchange has begun.
        late: with a quorum, how many rounds had an update of this rank that missed its fold.
        bytes: bytes that this rank has sent for the fragment, as worker and as owner, counted on the wire.
        hidden: seconds in which the fragment's exchange was pending while this rank trained, sampled at its steps.
        waited: seconds that training stood still for the fragment: to compute and push its updates, to wait for
            parameters, and to copy them.
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
    """This rank's counts about local steps: the number of steps, including skipped ones, and a FragmentStats for each
    fragment in order."""

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
        skipped: with a GradScaler, how many steps were left out since a gradient was not finite.
        in_place: how many gradients autograd wrote directly into the exchange's memory.
        copied: how many gradients were copied from torch's memory into the exchange's memory.
        copied_bytes: the bytes of these gradients.
        converted: how many of these copies changed the dtype, as for 16-bit parameters.
        dense: how many sparse gradients were made dense.
        params_copied: how many parameters were copied out of the exchange's memory: 16-bit parameters, and parameters
            that torch keeps in other memory.
        early: how many keys were sent while the backward pass ran, with apply="backward".
        wait: seconds that layers waited for their parameters, or that the methods `step` and `wait` waited for other
            ranks.
        bytes_out, seconds_out: bytes and seconds of the copies of gradients from a device to the host's memory.
        bytes_in, seconds_in: bytes and seconds of the copies of parameters from the host's memory to a device.
        copy_wait: seconds that this rank waited for gradients to arrive, or that its device stood still for parameters.
        state_bytes: bytes of the optimizer's state and of the float32 values of 16-bit parameters, which owners keep in
            the host's memory. Without hpcomm each rank would keep as many.
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
        """The fraction of the copies' seconds in which neither this rank nor its device waited for them; NaN without
        copies."""
        took = self.seconds_out + self.seconds_in
        return max(0.0, 1 - self.copy_wait / took) if took else math.nan


def _sums(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, n in counts:
        sums[name] = sums.get(name, 0) + n
    return sums
