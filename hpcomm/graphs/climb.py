"""Builds graphs of one out-degree with small path sums, and improves them by exchanging ends of edges.

A graph's path sum is the sum of the lengths of its shortest paths, over all pairs of ranks.
"""

from itertools import product
from math import frexp
from random import Random
from typing import NamedTuple

Arcs = list[list[int]]  # arcs[r]: the ranks that rank r sends to, for all ranks or for the first m ranks

MOST_EVENED = 64  # larger graphs keep uneven in-degrees, as evening takes time in proportion to P^3


class Candidate(NamedTuple):
    targets: Arcs  # for all ranks
    total: int  # the path sum


def moore_bound(P: int, Q: int) -> int:
    """Returns a lower bound of the path sum of any graph of P ranks with out-degree Q."""
    left, level, steps, total = P - 1, 1, 0, 0
    while left:
        level, steps = min(level * Q, left), steps + 1
        total += steps * level
        left -= level
    return P * total


def climb(P: int, Q: int, nodes: int) -> tuple[Candidate, int, int]:
    """Returns the best graph found, the least path sum found with in-degree Q everywhere, and the nodes left.

    Among graphs of equal path sums it prefers one with in-degree Q everywhere. A graph of m orbits looks the same from
    ranks r, r + m, r + 2 m, ... A search over few orbits is quick, and graphs with small path sums are often symmetric.
    A graph with one orbit is circulant; any graph has P orbits.

    Args:
        P, Q: number of ranks, and out-degree of each rank.
        nodes: how many graphs the search may look at.
    """
    bound = moore_bound(P, Q)
    found = [_candidate(P, arcs) for arcs in [_circulant(P, Q, P), *_built(P, Q)]]
    fair = min((one for one in found if _is_even(one.targets)), key=lambda one: one.total)
    if fair.total > bound and P > Q * (Q + 1):
        small, _, _ = climb(_base(P, Q), Q, nodes // 8)
        nodes -= nodes // 8
        found += [_candidate(P, arcs) for arcs in _lines(P, Q, [small.targets])]
    orbits = [m for m in range(1, P + 1) if P % m == 0]
    steps = max(1, nodes // 2 // (2 * len(orbits)))  # the other half of the nodes is for the proof (branch.search)
    for m, again in product(orbits, (False, True)):
        fair = min((one for one in [fair, *found] if _is_even(one.targets)), key=lambda one: one.total)
        if fair.total == bound:
            return fair, bound, nodes
        random = Random(P * 1_000_003 + Q * 1009 + m * 31 + again)
        start = fair.targets if again and m == P else _circulant(P, Q, m)
        arcs, total, used = _exchanged(P, start, bound, steps, random)
        turned = [[(w + k) % P for w in arcs[i]] for k in range(0, P, m) for i in range(m)]
        found.append(Candidate(turned, total))
        nodes = max(0, nodes - used)
    best = min(found, key=lambda one: (one.total, not _is_even(one.targets)))
    fair = min((one for one in found if _is_even(one.targets)), key=lambda one: one.total)
    return best if _is_even(best.targets) else _evened(P, Q, best), fair.total, nodes


def _candidate(P: int, arcs: Arcs) -> Candidate:
    return Candidate(arcs, path_sum(P, arcs))


def path_sum(P: int, arcs: Arcs) -> int:
    """Returns the path sum of a graph; P^3, more than any path sum, if some rank cannot reach some other rank.

    Args:
        P: number of ranks.
        arcs: the targets of ranks 0 to m - 1. Rank i + k m sends to w + k m, mod P, for each target w of rank i.
    """
    m, full = len(arcs), (1 << P) - 1
    edges = [[(w % m, w - w % m) for w in row] for row in arcs]
    heard = [1 << i for i in range(m)]  # bit w: the update of rank i is at rank w
    count, total = m, 0
    while count < m * P:
        total += m * P - count
        before, last = heard, count
        heard, count = [], 0
        for i, row in enumerate(edges):
            mask = before[i]
            if mask != full:
                for orbit, turn in row:
                    other = before[orbit]
                    mask |= other << turn | other >> P - turn
                mask &= full
            heard.append(mask)
            count += mask.bit_count()
        if count == last:
            return P**3
    return total * (P // m)


def _circulant(P: int, Q: int, m: int) -> Arcs:
    """Returns a circulant graph: strides 1, b, b^2, ... with b^Q >= P, filled up to Q with the smallest others."""
    b = 2
    while b**Q < P:
        b += 1
    powers = [stride for j in range(min(Q, P.bit_length())) if (stride := b**j) < P]
    strides = (powers + [stride for stride in range(1, P) if stride not in powers])[:Q]
    return [[(i + stride) % P for stride in strides] for i in range(m)]


def _base(P: int, Q: int) -> int:
    """Returns the number of ranks of the smaller graph from which _line makes a graph of P ranks."""
    return max(Q + 1, -(-P // Q))


def _built(P: int, Q: int) -> list[Arcs]:
    """Returns graphs whose construction guarantees a small diameter."""
    base = _base(P, Q)
    smaller = [_circulant(base, Q, base)] if base == Q + 1 else _built(base, Q) if base < P else []
    direct = _imase_itoh(P, Q)
    return _lines(P, Q, smaller) + ([] if direct is None else [direct])


def _lines(P: int, Q: int, smaller: list[Arcs]) -> list[Arcs]:
    return [arcs for small in smaller if (arcs := _line(P, Q, small)) is not None]


def _imase_itoh(P: int, Q: int) -> Arcs | None:
    """Returns the graph i -> -(Q i + r) mod P, r = 1 to Q: its diameter is at most ceil(log_Q P) (Imase, Itoh, 1983).

    A rank that would send to itself sends to the next such rank instead. Returns None if then a rank still sends to
    itself, or twice to one rank.
    """
    arcs = [[-(Q * i + r) % P for r in range(1, Q + 1)] for i in range(P)]
    loops = [i for i in range(P) if i in arcs[i]]
    for i, j in zip(loops, loops[1:] + loops[:1], strict=True):
        arcs[i][arcs[i].index(i)] = j
    return arcs if all(_simple(i, row) for i, row in enumerate(arcs)) else None


def _line(P: int, Q: int, small: Arcs) -> Arcs | None:
    """Returns the partial line digraph of a smaller graph: its diameter is at most one more (Fiol and Llado, 1992).

    Its ranks are P edges of the small graph, at least one into each rank. For each edge (v, w) of the small graph, edge
    (u, v) sends to (v, w), or, if (v, w) is not among the P edges, to another edge into w. From the complete graph of
    Q + 1 ranks it makes graphs of diameter 2, up to P = Q (Q + 1), which meet the Moore bound. Returns None if the
    construction does not apply, or a rank would send to itself or twice to one rank.
    """
    base = len(small)
    if Q == 1 or base >= P:
        return None
    into: list[list[int]] = [[] for _ in range(base)]
    for u, row in enumerate(small):
        for v in row:
            into[v].append(u)
    for k in range(sum(map(len, into)) - P):  # leave out an edge into the rank with most in-edges
        most = max(range(base), key=lambda v: (len(into[v]), -v))
        into[most].pop(k % len(into[most]))
    edges = [(u, v) for v in range(base) for u in into[v]]
    number = {edge: i for i, edge in enumerate(edges)}
    arcs = [[number[v, w] if (v, w) in number else -1 - w for w in small[v]] for _, v in edges]
    degrees = [0] * P
    for target in (w for row in arcs for w in row if w >= 0):
        degrees[target] += 1
    for i, row in enumerate(arcs):
        for k, w in enumerate(row):
            if w < 0:
                row[k] = min((number[u, -1 - w] for u in into[-1 - w]), key=lambda j: (degrees[j], j))
                degrees[row[k]] += 1
        if not _simple(i, row):
            return None
    return arcs


def _evened(P: int, Q: int, candidate: Candidate) -> Candidate:
    """Moves edges from ranks with many in-edges to ranks with few, where that does not enlarge the path sum."""
    arcs, total = candidate
    moved = P <= MOST_EVENED
    degrees = _in_degrees(P, arcs)
    while moved:
        moved = False
        for i, row in enumerate(arcs):
            for k in range(Q):
                for w in sorted(range(P), key=lambda w: (degrees[w], w)):
                    old = row[k]
                    if degrees[w] + 1 >= degrees[old]:
                        break
                    if w == i or w in row:
                        continue
                    row[k] = w
                    found = path_sum(P, arcs)
                    if found <= total:
                        total, moved = found, True
                        degrees[old] -= 1
                        degrees[w] += 1
                    else:
                        row[k] = old
    return Candidate(arcs, total)


def _exchanged(P: int, arcs: Arcs, bound: int, steps: int, random: Random) -> tuple[Arcs, int, int]:
    """Returns the best arcs that up to steps exchanges find, their path sum, and the number of exchanges done.

    An exchange swaps the orbits of two edges' targets, so that no orbit's in-degree changes, and draws the targets
    within these orbits at random. It is kept if the path sum does not grow, or by chance if it grows a little; the
    chance falls with each step (simulated annealing). All machines round these operations alike, so all ranks get the
    same arcs.
    """
    arcs = [list(row) for row in arcs]
    m, Q = len(arcs), len(arcs[0])
    rows = P // m
    now = least = path_sum(P, arcs)
    best = [list(row) for row in arcs]
    for step in range(steps):
        if least == bound:
            return best, least, step
        a, b = int(random.random() * m), int(random.random() * m)
        i, j = int(random.random() * Q), int(random.random() * Q)
        old_a, old_b = arcs[a][i], arcs[b][j]
        new_a = old_b % m + m * int(random.random() * rows)
        new_b = old_a % m + m * int(random.random() * rows)
        chance = random.random()
        arcs[a][i] = new_a
        arcs[b][j] = new_b
        if _simple(a, arcs[a]) and _simple(b, arcs[b]):
            new = path_sum(P, arcs)
            heat = rows * (1 - step / steps) * -frexp(chance)[1]
            if new <= now + heat:
                now = new
                if now < least:
                    least, best = now, [list(row) for row in arcs]
                continue
        arcs[a][i] = old_a
        arcs[b][j] = old_b
    return best, least, steps


def _simple(rank: int, row: list[int]) -> bool:
    """Whether a rank does not send to itself, nor twice to one rank."""
    return rank not in row and len(set(row)) == len(row)


def _in_degrees(P: int, arcs: Arcs) -> list[int]:
    degrees = [0] * P
    for row in arcs:
        for w in row:
            degrees[w] += 1
    return degrees


def _is_even(arcs: Arcs) -> bool:
    """Whether every rank's in-degree equals its out-degree."""
    return set(_in_degrees(len(arcs), arcs)) == {len(arcs[0])}
