"""Local steps: each rank trains by itself, and ranks exchange their progress once in H steps (DiLoCo).

fragments.py tells which keys are exchanged together, schedule.py at which steps. values.py has a rank's own parameters.
agree.py checks that all ranks give the same settings. roll_call.py has meetings of all ranks. fragment.py has the state
of one fragment's exchange. steps.py has LocalSteps, which uses all of these.
"""

from .fragments import Strided
from .steps import LocalSteps, local_steps

__all__ = ["LocalSteps", "Strided", "local_steps"]
