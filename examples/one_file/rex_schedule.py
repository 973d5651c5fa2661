"""A learning-rate schedule in one file: REX stays high for longer than a line, then falls faster.

(1 - q) / (1 - b q) is left after the fraction q of the steps; b = 0.5 is Chen et al., "REX: Revisiting Budgeted Training with
an Improved Schedule" (2021), arXiv:2107.04197, section 3; b = 0 is a line.
"""

from erniecore.api import Field, Section, hookimpl
from erniecore.api.schedule import SchedulePlugin


class Config(Section):
    bend: float = Field(0.5, ge=0, lt=1, description="How much later the rate falls; 0: in a line.")


class Rex(SchedulePlugin):
    name, summary, Config = "rex", "REX: falls late, then fast", Config

    @hookimpl
    def ernie_schedule_factor(self, config: Config, step: int, length: int) -> float:
        q = min(step / length, 1.0)
        return (1 - q) / (1 - config.bend * q)


plugin = Rex()
