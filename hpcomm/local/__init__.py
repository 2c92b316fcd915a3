"""Local steps: ranks train by themselves and exchange their progress once in H steps (DiLoCo).

fragments.py: which keys are exchanged together. schedule.py: at which steps. values.py: a rank's own parameters.
agree.py: checks that all ranks give the same settings. roll_call.py: meetings of all ranks. fragment.py: an exchange
that has begun. steps.py: LocalSteps, which uses them all.
"""

from .fragments import Strided
from .steps import LocalSteps, local_steps

__all__ = ["LocalSteps", "Strided", "local_steps"]
