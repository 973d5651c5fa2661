"""Falls by a quarter of a cosine: slowly at first, fastest at the end."""

from math import cos, pi

from erniecore.api import hookimpl
from erniecore.api.schedule import SchedulePlugin


class QuarterCosine(SchedulePlugin):
    """cos(π q / 2) of the rate above `train.min_lr` is left after the fraction q of the steps behind the warm-up."""

    name, summary = "quarter-cosine", "a quarter of a cosine"

    @hookimpl
    def ernie_schedule_factor(self, step: int, length: int) -> float:
        return cos(pi / 2 * min(step / length, 1.0))


plugin = QuarterCosine()
