"""The way of updates and parameters through the stages of a plan: folding ranks, and the traffic between groups."""

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

Edges = tuple[tuple[int, int, float], ...]  # rank, row, weight
Lists = tuple[list[Edges], list[int], list[int]]  # of Rows.lists


def feeders(lists: Lists) -> list[int]:
    """The ranks whose pushes go into each row, through any stages and relays: a bit for each rank."""
    return _followed(lists[0], lists[1], lists[2])


def receivers(lists: Lists) -> list[int]:
    """The ranks that get the result of each row in the end: a bit for each rank."""
    return _followed(lists[0], lists[2], lists[1])


def _followed(edges: Sequence[Edges], ends: Sequence[int], others: Sequence[int]) -> list[int]:
    """The ranks at the ends of all ways to each row. ends, others: by row, the number of its edges on either side."""
    own = [sum(1 << rank for rank, row, _ in part if row < 0) for part in edges]
    rows = [[row for _, row, _ in part if row >= 0] for part in edges]
    found = [own[i] for i in ends]
    missing = [len(rows[i]) for i in ends]
    ready = [row for row, n in enumerate(missing) if n == 0]
    for row in ready:  # grows meanwhile, as a plan has no circle
        for after in rows[others[row]]:
            found[after] |= found[row]
            missing[after] -= 1
            if missing[after] == 0:
                ready.append(after)
    return found


class Flow(NamedTuple):
    lists: Lists  # of the edges
    owner: Sequence[int]
    action: Sequence[str]
    inputs: Sequence[int]  # bytes of one
    outputs: Sequence[int]


def drawn(flow: Flow, told: Callable[[int], str], most: int) -> list[str]:
    """The stages as lines: the tree of groups, with the bytes that leave and enter each, and the `most` largest links
    between the innermost groups. told: writes a number of bytes."""
    fed, reached, sent = feeders(flow.lists), receivers(flow.lists), _traffic(flow)
    ends = zip(flow.action, flow.owner, fed, reached, strict=True)
    found = {part for kind, owner, *masks in ends for part in _folded(kind, owner, *masks)}
    ranks = _mask(rank for link in sent for rank in link)
    groups = sorted(found - {ranks}, key=lambda mask: (mask.bit_count(), mask))
    if any(a & b not in (0, a, b) for a in groups for b in groups):  # a ring: its partial folds are no groups
        groups = [a for a in groups if not any(b != a and b & a == b for b in groups)]
    tree = _tree(ranks, groups, lambda mask: _load(mask, sent, set(flow.owner), told))
    hosts = [a for a in groups if not any(b != a and b & a == b for b in groups)]
    head = "groups of ranks; out and in: bytes of updates and of parameters that leave and enter a group"
    return [head, _ranks(ranks), *tree, "", *_links(hosts, sent, told, most)]


def _folded(kind: str, owner: int, fed: int, reached: int) -> list[int]:
    """The group for which a row of one of its ranks folds, applies or passes on."""
    mask = {"forward": fed, "relay": reached, "apply": reached}.get(kind, 0)
    return [mask] if mask.bit_count() > 1 and mask >> owner & 1 else []


def _traffic(flow: Flow) -> dict[tuple[int, int], tuple[int, int]]:
    sent: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    edges, ins, outs = flow.lists
    for row, (kind, owner) in enumerate(zip(flow.action, flow.owner, strict=True)):
        for rank, _, _ in filter(_carries, edges[ins[row]]) if kind != "relay" else ():
            sent[rank, owner][0] += flow.inputs[row]
        for rank, _, _ in edges[outs[row]] if kind != "forward" else ():
            sent[owner, rank][1] += flow.outputs[row]
    return {link: (updates, parameters) for link, (updates, parameters) in sent.items()}


def _carries(edge: tuple[int, int, float]) -> bool:
    """Whether an input has bytes: a push of weight 0 only says that its rank is ready."""
    _, row, weight = edge
    return row >= 0 or weight != 0


def _load(
    mask: int, sent: Mapping[tuple[int, int], tuple[int, int]], leaders: set[int], told: Callable[[int], str]
) -> str:
    out = sum(sum(n) for (a, b), n in sent.items() if mask >> a & 1 and not mask >> b & 1)
    into = sum(sum(n) for (a, b), n in sent.items() if mask >> b & 1 and not mask >> a & 1)
    leading = _mask(rank for rank in leaders if mask >> rank & 1)
    led = f"; led by {_ranks(leading)}" if mask.bit_count() > 1 else ""
    return f"{_ranks(mask)}: {told(out)} out, {told(into)} in{led}"


def _tree(whole: int, groups: Sequence[int], line: Callable[[int], str]) -> list[str]:
    """The groups in a group, by their lowest ranks, each with its own groups below."""
    within = [group for group in groups if group != whole and group & whole == group]
    tops = [a for a in within if not any(a != b and a & b == a for b in within)]
    if tops:
        tops += [1 << rank for rank in _bits(whole & ~_union(tops))]
    tops.sort(key=lambda mask: mask & -mask)
    lines = []
    for mask in tops:
        last = mask == tops[-1]
        lines.append(f"{'└─' if last else '├─'} {line(mask)}")
        lines += [f"{'  ' if last else '│ '} {below}" for below in _tree(mask, within, line)]
    return lines


def _links(
    hosts: Sequence[int],
    sent: Mapping[tuple[int, int], tuple[int, int]],
    told: Callable[[int], str],
    most: int,
) -> list[str]:
    home = {rank: mask for mask in hosts for rank in _bits(mask)}
    links: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for (a, b), (updates, parameters) in sent.items():
        link = home.get(a, 1 << a), home.get(b, 1 << b)
        if link[0] != link[1]:
            links[link][0] += updates
            links[link][1] += parameters
    table = [("from", "to", "updates", "parameters")]
    for (source, target), (updates, parameters) in sorted(links.items(), key=lambda one: (-sum(one[1]), one[0]))[:most]:
        table.append((_ranks(source), _ranks(target), told(updates), told(parameters)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        f"{a.ljust(widths[0])}  {b.ljust(widths[1])}  {c.rjust(widths[2])}  {d.rjust(widths[3])}"
        for a, b, c, d in table
    ]
    return lines + [f"... and {len(links) - most} more links"] * (len(links) > most)


def _mask(ranks: Iterable[int]) -> int:
    return _union(1 << rank for rank in ranks)


def _union(masks: Iterable[int]) -> int:
    return reduce(operator.or_, masks, 0)


def _bits(mask: int) -> Iterable[int]:
    return (rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def _ranks(mask: int) -> str:
    """The ranks of a group, runs of them shortened."""
    runs: list[list[int]] = []
    for rank in _bits(mask):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'' if mask.bit_count() == 1 else 's'} {told}"
