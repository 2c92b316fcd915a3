"""The trees of a parameter server: each owner's folded updates go to the workers down a tree of that owner (Parameter
Flow, section 3.4)."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from ..errors import InvalidArgument
from ..stage import whole
from .tree import Tree

Trees: TypeAlias = Tree | Mapping[int, Tree] | tuple[tuple[int, Tree], ...] | Literal["auto"] | None


def as_trees(given: object) -> Trees:
    """Returns ParameterServer.tree in its stored form: a mapping becomes pairs in the order of owners.

    Raises:
        InvalidArgument: given has another type.
    """
    if given is None or isinstance(given, Tree):
        return given
    if given == "auto":
        return "auto"
    pairs = list(given.items() if isinstance(given, Mapping) else given) if isinstance(given, Mapping | tuple) else []
    wrong = next((tree for _, tree in pairs if not isinstance(tree, Tree)), given if not pairs else None)
    if wrong is None:
        return tuple(
            sorted(((whole("tree: owner", owner, 0), tree) for owner, tree in pairs), key=lambda pair: pair[0])
        )
    raise InvalidArgument(
        f"tree is {wrong!r}: must be a Tree, a mapping from ranks of servers to Tree values, 'auto' or None"
    )


def tree_for(trees: Trees, owner: int) -> Tree | None:
    """Returns the tree of one owner; None: the owner sends to all workers itself."""
    if isinstance(trees, Tree):
        return trees
    return dict(trees).get(owner) if isinstance(trees, tuple) else None


def trees_of(trees: Trees, workers: Sequence[int], servers: Sequence[int], size: int) -> list[list[int]] | None:
    """Returns the argument parents of Plan.hub for these trees, or None if no server has a tree. A rank that is not a
    worker passes nothing on, so its children in the tree become children of its parent.

    Raises:
        InvalidArgument: a tree is for another number of ranks, or for a rank that is not a server.
    """
    strange = [owner for owner, _ in trees if owner not in servers] if isinstance(trees, tuple) else []
    if strange:
        raise InvalidArgument(f"tree has rank {strange[0]}, which does not serve: the servers are {list(servers)}")
    own = [tree_for(trees, owner) for owner in servers]
    if all(tree is None for tree in own):
        return None
    number = {rank: i for i, rank in enumerate(workers)}

    def parents(tree: Tree | None, owner: int) -> list[int]:
        if tree is None:
            return [-1] * len(workers)
        above = tree.turned(owner, size)

        def parent(rank: int) -> int:
            at = above[rank]
            while at >= 0 and at != owner and at not in number:
                at = above[at]
            return -1 if at in (-1, owner) else number[at]

        return [parent(rank) for rank in workers]

    return [parents(tree, owner) for tree, owner in zip(own, servers, strict=True)]


def trees_among(trees: Trees, ranks: Sequence[int], size: int) -> Trees:
    """Returns the trees of the owners that remain, each as Tree.among() changes it. The remaining ranks get new numbers
    in the order of the argument ranks."""
    if isinstance(trees, Tree):
        return _among(trees, ranks, size)
    if not isinstance(trees, tuple):
        return trees
    new = {rank: i for i, rank in enumerate(ranks)}
    return tuple((new[owner], _among(tree, ranks, size)) for owner, tree in trees if owner in new)


def _among(tree: Tree, ranks: Sequence[int], size: int) -> Tree:
    return Tree(tree.arity) if tree.parents is None else tree.among(ranks, size)
