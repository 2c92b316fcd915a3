"""Follows updates and parameters through a plan: finds which groups of ranks fold, and how many bytes go between
groups. str(plan) prints it.

A set of ranks is an int with one bit for each rank, called a mask.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

Edges = tuple[tuple[int, int, float], ...]  # rank, row, weight
Lists = tuple[list[Edges], list[int], list[int]]  # the result of Rows.lists


def feeders(lists: Lists) -> list[int]:
    """Returns for each row the mask of the ranks whose pushes reach the row, through any number of stages and
    relays."""
    return _followed(lists[0], lists[1], lists[2])


def receivers(lists: Lists) -> list[int]:
    """Returns for each row the mask of the ranks that the row's result reaches, through any number of stages and
    relays."""
    return _followed(lists[0], lists[2], lists[1])


def _followed(edges: Sequence[Edges], ends: Sequence[int], others: Sequence[int]) -> list[int]:
    """Returns for each row the mask of the ranks at the far ends of all paths that end at the row. ends[r] is the
    number of row r's list of edges on the side of these paths; others[r] is that of its list on the other side."""
    own = [sum(1 << rank for rank, row, _ in part if row < 0) for part in edges]
    rows = [[row for _, row, _ in part if row >= 0] for part in edges]
    found = [own[i] for i in ends]
    missing = [len(rows[i]) for i in ends]
    ready = [row for row, n in enumerate(missing) if n == 0]
    for row in ready:  # the loop appends rows; it ends, as a plan has no circle
        for after in rows[others[row]]:
            found[after] |= found[row]
            missing[after] -= 1
            if missing[after] == 0:
                ready.append(after)
    return found


class Flow(NamedTuple):
    lists: Lists
    owner: Sequence[int]
    action: Sequence[str]
    inputs: Sequence[int]  # by row: the bytes of one input
    outputs: Sequence[int]  # by row: the bytes of one output


def drawn(flow: Flow, told: Callable[[int], str], most: int) -> list[str]:
    """Returns the text of the stages: a tree of the groups that fold, with the bytes that leave and enter each group,
    then the links between the innermost groups that carry most, at most `most` of them. told(n) returns n bytes as
    text."""
    fed, reached, sent = feeders(flow.lists), receivers(flow.lists), _traffic(flow)
    ends = zip(flow.action, flow.owner, fed, reached, strict=True)
    found = {part for kind, owner, *masks in ends for part in _folded(kind, owner, *masks)}
    ranks = _mask(rank for link in sent for rank in link)
    groups = sorted(found - {ranks}, key=lambda mask: (mask.bit_count(), mask))
    if any(a & b not in (0, a, b) for a in groups for b in groups):  # a ring: drop its partial folds, which overlap
        groups = [a for a in groups if not any(b != a and b & a == b for b in groups)]
    tree = _tree(ranks, groups, lambda mask: _load(mask, sent, set(flow.owner), told))
    hosts = [a for a in groups if not any(b != a and b & a == b for b in groups)]
    head = "groups of ranks; out and in: bytes of updates and of parameters that leave and enter a group"
    return [head, _ranks(ranks), *tree, "", *_links(hosts, sent, told, most)]


def _folded(kind: str, owner: int, fed: int, reached: int) -> list[int]:
    """Returns the group for which a row folds, applies or relays, as [mask]; or [] if the owner is not in the group, or
    is its only rank."""
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
    """Returns whether an input carries data. A push of weight 0 carries none: it only tells that its rank is ready."""
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
    """Returns the lines for the groups inside a group, in the order of their lowest ranks. Each line is followed by the
    lines of the groups inside that group."""
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
    """Returns the ranks of a mask as text, with ranges such as 0-3."""
    runs: list[list[int]] = []
    for rank in _bits(mask):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'' if mask.bit_count() == 1 else 's'} {told}"
