"""A plan that was made earlier, as a topology."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidArgument, NotSupported
from ..plan import Plan
from .protocol import Request, Roles, Topology


@dataclass(frozen=True)
class Planned(Topology):
    """The topology of Exchange(plan=Plan): the given plan is used as it is, and options that affect plans are ignored.

    Attributes:
        plan: a plan for the keys and the number of ranks of the job.
    """

    plan: Plan

    def roles(self, size: int) -> Roles:
        if self.plan.size != size:
            raise InvalidArgument(f"plan is for {self.plan.size} ranks: the job has {size}")
        return self.plan.workers, self.plan.servers

    def compile(self, request: Request) -> Plan:
        """Returns the same plan for every request. The exchange checks that the plan has the job's keys and number of
        ranks."""
        return self.plan

    def among(self, ranks: Sequence[int], size: int) -> Topology:
        """Raises NotSupported, since a given plan cannot be changed for fewer ranks.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(
            "recover: the exchange was made from a Plan, which recover cannot rebuild: make another Plan and Exchange"
        )
