"""Whether the survivors of a random job name a rank that fell, and no other."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from random_plan import LEAST, Job

RIGHT, WRONG, UNAFFECTED, HUNG = "right", "wrong", "not affected", "hang"
CHAIN = "by a chain"
GOOD = (RIGHT, CHAIN, UNAFFECTED)


@dataclass(frozen=True)
class Verdict:
    """What a rank's end is worth, and why."""

    rank: int
    verdict: str
    why: str
    seconds: float | None = None  # from the fall to the error
    saw: dict[str, Any] = field(default_factory=dict)


def judge(
    job: Job, rank: int, status: int, saw: dict[str, Any] | None, fell: Mapping[int, int], *, asked: bool = False
) -> Verdict:
    """The verdict on a survivor. status: what it exited with, negative: a signal's number; saw: what it wrote down;
    fell: when each victim fell, in nanoseconds, without those that ended before. asked: the ranks were asked to end,
    for no rank had missed the victim."""
    if saw is None:
        return Verdict(rank, WRONG, f"ended with status {status} and wrote nothing down")
    seconds = (saw["when"] - min(fell.values())) / 1e9 if fell else None
    verdict, why = _of_error(job, rank, saw, set(fell))
    if asked and verdict == WRONG and _comes_last(job, saw):
        verdict, why = UNAFFECTED, ""
    if status and verdict != WRONG:
        verdict, why = WRONG, f"ended with status {status}"
    return Verdict(rank, verdict, why, seconds, saw)


def _of_error(job: Job, rank: int, saw: dict[str, Any], fell: set[int]) -> tuple[str, str]:
    if saw["error"] is None:
        if job.kind == "close" or (saw["place"] == "closed" and _needs_nobody(job, rank)):
            return UNAFFECTED, ""
        return WRONG, "ended without an error"
    if not fell:
        return WRONG, "failed although nobody had fallen"
    named = _named(saw)
    if named is None:
        return WRONG, "is neither PeerFailed nor Timeout"
    attribute, ranks = named
    if fell <= set(saw["left"]):  # of two one may have left because of the other, and have fallen meanwhile
        return WRONG, f"left are {saw['left']}"
    return (RIGHT, "") if ranks and set(ranks) <= fell else (WRONG, f"{attribute} are {ranks}")


def follow(job: Job, fell: Iterable[int], verdicts: list[Verdict]) -> list[Verdict]:
    """The verdicts, after early closes alone. An error then may also name a rank that left because of such a rank, and
    while it was waited for: PeerFailed promises no more."""
    named = {*fell, *(found.rank for found in verdicts if found.verdict == RIGHT)}
    verdicts = list(verdicts)
    while all(fall.signal == "close" for fall in job.falls if fall.victim in fell):
        chained = [
            i
            for i, found in enumerate(verdicts)
            if found.verdict == WRONG and found.saw.get("ranks") and set(found.saw["ranks"]) <= named
        ]
        if not chained:
            break
        for i in chained:
            verdicts[i] = replace(verdicts[i], verdict=CHAIN)
            named.add(verdicts[i].rank)
    return verdicts


def _comes_last(job: Job, saw: dict[str, Any]) -> bool:
    """Whether a rank has found no quorum, or has served until others found none: workers that are asked to end do so at
    different versions, and those of the last one are too few."""
    return (
        job.kind == "quorum-hub"
        and saw["error"] == "PeerFailed"
        and not {fall.victim for fall in job.falls} & {*saw["ranks"], *saw["left"]}
    )


def _needs_nobody(job: Job, rank: int) -> bool:
    """Whether a rank may end well although another one fell: a worker under ASYNC or with a quorum, if no key
    lies with that one; a rank that only serves, when all workers have closed; or a worker, if a server fell that owns
    nothing."""
    servers = job.options.get("servers", ()) if job.options.get("placement") in ("NCC", "NCS") else ()
    owners = job.options["keys"] if job.options.get("elements") == LEAST else len(servers)  # one chunk a key
    idle = owners < len(servers) and {fall.victim for fall in job.falls} <= {*servers}
    return job.kind in ("async", "quorum-hub") or rank in servers or idle


def _named(saw: dict[str, Any]) -> tuple[str, list[int]] | None:
    """The attribute that names the culprits, and who they are."""
    if saw["error"] == "PeerFailed":
        return "ranks", saw["ranks"]
    if saw["error"] != "Timeout":
        return None
    if saw["culprits"]:
        return "culprits", sorted({culprit["rank"] for culprit in saw["culprits"]})
    return "waiting_for", saw["waiting_for"]


@dataclass
class Outcome:
    """How a job ended. fell: how many ranks fell. hung: the ranks that had not ended in time."""

    job: Job
    fell: int
    verdicts: list[Verdict]
    hung: list[int]
    seconds: float
    kept: str = ""

    @property
    def good(self) -> bool:
        return not self.hung and all(found.verdict in GOOD for found in self.verdicts)

    def told(self) -> list[str]:
        """A line for each rank that is not right."""
        return [
            f"  rank {found.rank}: {found.why}: {found.saw.get('error', '')} in {found.saw.get('op', '')!r} at "
            f"{found.saw.get('place', '?')}{_after(found.seconds)}: {found.saw.get('message', '')}"
            for found in self.verdicts
            if found.verdict not in GOOD
        ]


def _after(seconds: float | None) -> str:
    return "" if seconds is None else f", {seconds:.2f} s after the fall"


def _counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    counts = dict.fromkeys(("jobs", "all right", "survivors", *GOOD, WRONG, HUNG), 0)
    for outcome in outcomes:
        counts["jobs"] += 1
        counts["all right"] += outcome.good
        counts["survivors"] += outcome.job.size - outcome.fell
        counts[HUNG] += bool(outcome.hung)
        for found in outcome.verdicts:
            if found.verdict != HUNG:
                counts[found.verdict] += 1
    return counts


def table(outcomes: list[Outcome]) -> str:
    """Counts by kind, transport and signal, with a line of sums for each signal and transport, and for all."""
    rows: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        job = outcome.job
        for kind, transport, sent in (
            (job.kind, job.transport, job.signal),
            ("~all", job.transport, job.signal),
            ("~all", "~", job.signal),
            ("~all", "~", "~"),
        ):
            rows.setdefault((kind, transport, sent), []).append(outcome)
    heads = list(_counts([]))
    lines = [f"{'kind':13}{'over':6}{'signal':7}" + "".join(f"{head:>14}" for head in heads)]
    for (kind, transport, sent), of_row in sorted(rows.items()):
        numbers = "".join(f"{number:>14}" for number in _counts(of_row).values())
        lines.append(f"{kind.strip('~'):13}{transport.strip('~'):6}{sent.strip('~'):7}{numbers}")
    late = [found.seconds for outcome in outcomes for found in outcome.verdicts if found.seconds is not None]
    if late:
        lines.append(f"the last error came {max(late):.2f} s after the fall")
    return "\n".join(lines)
