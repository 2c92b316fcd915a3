"""Local steps: ranks train by themselves and exchange their progress once in H steps (DiLoCo).

fragments says which keys are exchanged together, schedule at which steps, values where a rank's own parameters lie,
agree checks that all ranks want the same, roll_call is how they meet, fragment holds a begun exchange, steps does it
all.
"""

from .fragments import Strided
from .steps import LocalSteps, local_steps

__all__ = ["LocalSteps", "Strided", "local_steps"]
