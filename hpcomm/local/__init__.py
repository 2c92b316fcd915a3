"""Local steps: ranks train by themselves and exchange what they have learned once in H steps (DiLoCo).

fragments says which keys are exchanged together, schedule at which steps, values where a rank's own parameters lie,
agree whether all ranks want the same, roll_call how they meet, fragment what has begun, steps does it, stats counts.
"""

from .fragments import Strided
from .stats import FragmentStats, LocalStats
from .steps import LocalSteps, local_steps

__all__ = ["FragmentStats", "LocalStats", "LocalSteps", "Strided", "local_steps"]
