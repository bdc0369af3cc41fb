"""A number that stays, or one that follows the steps of a run: ``0.2``, or ``{from: 0.2, to: 0.1, shape: cosine}``.

Its value is a function of the step alone, so a resumed run needs no memory of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, PositiveInt, Tag, model_validator
from typing_extensions import Self

from tightrope.config.base import Section, refused
from tightrope.maths.schedules import scheduled


class Schedule(Section):
    """From one value to another between two steps; it stays at either before and after."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
    first: float = Field(alias="from", ge=0.0)
    """Value up to step ``start``."""
    last: float = Field(alias="to", ge=0.0)
    """Value from step ``end`` on."""
    shape: Literal["linear", "cosine", "constant"] = "linear"
    """A straight line, half a cosine, or ``from`` until ``end`` and then ``to`` at once."""
    start: int = Field(default=0, ge=0)
    """Step (from 0) at which the value begins to move."""
    end: PositiveInt | None = None
    """Step at which it has arrived. Absent: the last step of the run."""

    @model_validator(mode="after")
    def moves_forward(self) -> Self:
        if self.end is not None and self.start >= self.end:
            raise refused("end", "a schedule ends before it has begun", "set its end after its start")
        return self


def _kind(value: Any) -> str:
    return "<schedule>" if isinstance(value, dict | Schedule) else "<number>"


def _positive(value: Schedule) -> Schedule:
    if min(value.first, value.last) <= 0:
        raise refused("", "a schedule of a number that must stay above 0 reaches 0", "set from and to above 0")
    return value


def _below_one(value: Schedule) -> Schedule:
    if max(_positive(value).first, value.last) >= 1:
        raise refused("", "a schedule of a number under 1 reaches 1", "set from and to between 0 and 1")
    return value


# Tags in angle brackets are no keys: config/load.py leaves them out of the place of a mistake.
_Plain = Annotated[Schedule, Tag("<schedule>")]
_Above0 = Annotated[Schedule, AfterValidator(_positive), Tag("<schedule>")]
_Share = Annotated[Schedule, AfterValidator(_below_one), Tag("<schedule>")]
Coefficient = Annotated[Annotated[float, Field(ge=0.0), Tag("<number>")] | _Plain, Discriminator(_kind)]
"""At least 0, fixed or scheduled."""
PositiveCoefficient = Annotated[Annotated[float, Field(gt=0.0), Tag("<number>")] | _Above0, Discriminator(_kind)]
"""Above 0, fixed or scheduled."""
ShareCoefficient = Annotated[Annotated[float, Field(gt=0.0, lt=1.0), Tag("<number>")] | _Share, Discriminator(_kind)]
"""Above 0 and under 1, fixed or scheduled."""


def value_at(coefficient: float | Schedule, step: int, total: int) -> float:
    """The number that holds in ``step`` of a run of ``total`` steps.

    >>> value_at(Schedule(first=1.0, last=0.0), step=1, total=3), value_at(0.2, step=1, total=3)
    (0.5, 0.2)
    """
    if not isinstance(coefficient, Schedule):
        return coefficient
    end = total - 1 if coefficient.end is None else coefficient.end
    return scheduled(step, coefficient.first, coefficient.last, coefficient.shape, coefficient.start, end)


def extremes(coefficient: float | Schedule) -> tuple[float, float]:
    """The least and the greatest value it takes.

    >>> extremes(Schedule(first=1.0, last=0.5))
    (0.5, 1.0)
    """
    both = (coefficient.first, coefficient.last) if isinstance(coefficient, Schedule) else (coefficient,) * 2
    return min(both), max(both)


def scheduled_values(section: Section, now: Now, above: str = "") -> dict[str, float]:
    """The present value of every scheduled number of a config, by its key."""
    found: dict[str, float] = {}
    for name in type(section).model_fields:
        value = dict(section)[name]
        if isinstance(value, Schedule):
            found[above + name] = now(value)
        elif isinstance(value, Section):
            found |= scheduled_values(value, now, f"{above}{name}.")
    return found


def at_step(step: Callable[[], int], total: int) -> Now:
    """What a part of a run asks for the present value of a coefficient."""
    return lambda coefficient: value_at(coefficient, step(), total)


def at_start(coefficient: float | Schedule) -> float:
    """Outside a run: the value of step 0."""
    return value_at(coefficient, 0, 2)


Now = Callable[[float | Schedule], float]
