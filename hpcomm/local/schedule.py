"""The steps at which fragments are exchanged (DiLoCo, algorithm 1; Streaming DiLoCo, algorithm 2)."""

from dataclasses import dataclass

from ..errors import InvalidArgument
from ..stage import whole


@dataclass(frozen=True)
class Schedule:
    """The steps at which fragments are exchanged. Steps are a rank's own, counted from 1.

    Attributes:
        every: H, the number of steps from one exchange of a fragment to its next, 1 or more.
        fragments: the number of fragments. Their exchanges are spread over H steps: fragment p is due after step s if s
            mod H = (p + 1) * H // fragments mod H. So the last fragment is due after multiples of H.
        delay: tau, the number of steps between the start of an exchange and the take of its parameters, 0 to H - 1.
        mix: the weight of the new parameters when a rank takes them, above 0 and at most 1 (1 - alpha in the paper).

    Raises:
        InvalidArgument: a number is out of its range.
    """

    every: int
    fragments: int = 1
    delay: int = 0
    mix: float = 1.0

    def __post_init__(self) -> None:
        every = whole("every", self.every, 1)
        delay = whole("delay", self.delay, 0)
        if delay >= every:
            raise InvalidArgument(
                f"delay is {delay} and every is {every}: an exchange must be taken before the next one of its "
                f"fragment begins, give a delay below {every}"
            )
        mix = self.mix
        if isinstance(mix, bool) or not isinstance(mix, int | float) or not 0 < mix <= 1:
            raise InvalidArgument(f"mix is {mix!r}: must be a number above 0 and at most 1 (1 - alpha of the paper)")
        object.__setattr__(self, "every", every)
        object.__setattr__(self, "delay", delay)
        object.__setattr__(self, "mix", float(mix))

    def offset(self, fragment: int) -> int:
        """Returns s mod H, where s is any step after which the fragment is due."""
        return (fragment + 1) * self.every // self.fragments % self.every

    def due(self, step: int) -> bool:
        """Returns whether the exchange of any fragment begins after this step."""
        return any(step % self.every == self.offset(fragment) for fragment in range(self.fragments))

    def begun_by(self, fragment: int, step: int) -> int:
        """Returns how many exchanges of a fragment have begun once a rank has made this step."""
        offset = self.offset(fragment)
        return (step - offset) // self.every + (offset > 0)

    def step_of(self, fragment: int, number: int) -> int:
        """Returns the step at which exchange number 1, 2, ... of a fragment begins."""
        offset = self.offset(fragment)
        return number * self.every if offset == 0 else offset + (number - 1) * self.every

    def waits(self, step: int) -> bool:
        """Returns whether a rank begins or takes an exchange after this step."""
        return self.due(step) or (step > self.delay and self.due(step - self.delay))

    def next_due(self, step: int) -> int:
        """Returns the first step after this one after which an exchange begins."""
        return step + 1 + min((self.offset(fragment) - step - 1) % self.every for fragment in range(self.fragments))
