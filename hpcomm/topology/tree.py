"""Trees, down which one rank's updates go from rank to rank (Parameter Flow, section 3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..consistency import applies_each
from ..errors import InvalidArgument
from ..graphs.tree_costs import checked_parents
from ..plan import Plan
from ..stage import whole
from .protocol import Job, Request, Topology


@dataclass(frozen=True)
class Tree(Topology):
    """A broadcast: the values that the root pushes become every rank's parameters.

    Each rank sends a chunk to its children as soon as the rank has the whole chunk. So a broadcast takes as long as the
    busiest rank needs to send to all its children, plus the time of one chunk for each hop.

        ex = hpcomm.broadcast(ctx, params, hpcomm.Tree(arity=1, root=3))           # a chain
        ex = hpcomm.broadcast(ctx, params, hpcomm.Tree(parents=[-1, 0, 0, 1]))

    Attributes:
        arity: the largest number of children of a rank. The tree is filled level by level with root, root + 1, ..., mod
            size: the next arity ranks after the root are the root's children, the ranks after these are the first
            child's children, and so on.
        root: the rank whose updates are broadcast.
        parents: parents[i] is the rank that sends to rank i, or -1 if rank i is the root. If given, arity and root are
            ignored.

    Raises:
        InvalidArgument: arity is below 1, root is below 0, or parents contains anything but ranks and -1. Tree.above()
            checks that root and parents match the number of ranks.
    """

    arity: int = 2
    root: int = 0
    parents: Sequence[int] | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "arity", whole("arity", self.arity, 1))
        put(self, "root", whole("root", self.root, 0))
        if self.parents is not None:
            put(self, "parents", checked_parents(self.parents))

    def above(self, size: int) -> tuple[int, ...]:
        """Returns a tuple for a job of size ranks: element i is the rank that sends to rank i, or -1 if rank i is the
        root.

        Raises:
            InvalidArgument: root is not a rank of the job, or parents is for another number of ranks.
        """
        size = whole("size", size, 1)
        if self.parents is not None:
            return checked_parents(self.parents, size)
        root = whole("root", self.root, 0, size - 1)
        places = ((rank - root) % size for rank in range(size))
        return tuple(-1 if at == 0 else ((at - 1) // self.arity + root) % size for at in places)

    def turned(self, root: int, size: int) -> tuple[int, ...]:
        """Returns `above` for the same tree with another root. A tree by arity is built from the new root. A tree by
        parents keeps its edges, but the edges on the path between the two roots are reversed.

        Raises:
            InvalidArgument: above raises it, root is not a rank, or the ranks are not a tree.
        """
        root = whole("root", root, 0, whole("size", size, 1) - 1)
        if self.parents is None:
            return replace(self, root=root).above(size)
        above = list(self.above(size))
        below, at = -1, root
        for _ in range(size):
            above[at], at, below = below, above[at], at
            if at < 0:
                return tuple(above)
        raise InvalidArgument(f"parents is {self.parents!r}: rank {root} does not come from a root")

    def roles(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the workers of a job of size ranks, and the ranks whose cores work: the root, and ranks with
        children."""
        above = self.above(size)
        return tuple(range(size)), tuple(rank for rank in range(size) if above[rank] < 0 or rank in above)

    @property
    def updates_of(self) -> Literal["root"]:
        return "root"

    def refuses(self, job: Job) -> str | None:
        if applies_each(job.consistency):
            return (
                f"consistency is {job.consistency}: ASYNC and SSP(s) apply the updates of several workers each by "
                "itself, and a Tree has those of one: give BSP"
            )
        if job.consistency.quorum is not None:
            return (
                f"consistency is {job.consistency}: a quorum is one of several workers' updates, and a Tree has those "
                "of one: give BSP"
            )
        return None

    def compile(self, request: Request) -> Plan:
        """Returns Plan.tree for the parents that `above` returns. As only one rank has updates, only the request's cut
        is used."""
        return Plan.tree(request.keys, self.above(request.size), **request.cut)

    def among(self, ranks: Sequence[int], size: int) -> "Tree":
        """Returns the tree of the remaining ranks. If the parent of a rank is gone, its grandparent becomes its parent.
        If the root is gone, its lowest child becomes the root."""
        above, new = list(self.above(size)), {rank: i for i, rank in enumerate(ranks)}
        root = above.index(-1)
        while root not in new:
            heir = above.index(root)
            above = [heir if parent == root else parent for parent in above]
            above[heir], root = -1, heir

        def living(rank: int) -> int:
            while rank not in new:
                rank = above[rank]
            return new[rank]

        return replace(self, parents=tuple(-1 if rank == root else living(above[rank]) for rank in ranks))
