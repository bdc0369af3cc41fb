"""What gives rewards, where several do: one entry of ``reward.sources``, and what each kind of source needs to know.

Another kind is one field of ``SourceSection``, its name in ``KINDS``, and its factory in ``assemble/reward_sources``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from typing_extensions import Self

from tightrope.config.base import FunctionSpec, ModelName, Section, refused
from tightrope.config.code_reward import CodeSection

KINDS = ("model", "function", "http", "code")
"""The keys that say what an entry is; each has exactly one of them."""
DEADLINES = {"function": 600.0, "http": 60.0}
"""Seconds for one attempt where none are named. A reward model computes in this process and is waited for."""
UNTIMED = {
    "model": "a model has no deadline, it computes in this process",
    "code": "each case has its own code.seconds",
}
"""Kind -> why it has no deadline."""


class HttpSection(Section):
    url: str = Field(pattern=r"^https?://")
    """Address of a service that speaks the reward protocol, as ``tightrope rm serve`` prints it."""
    token_env: str = Field(default="TIGHTROPE_REWARD_TOKEN", pattern=r"^[A-Za-z_]\w*$")
    """Environment variable that holds the token; where it is not set none is sent."""
    batch_size: PositiveInt | None = None
    """Samples of one request. Absent: all at once."""
    columns: tuple[str, ...] | None = None
    """Columns of the row that are sent. Absent: all."""
    fingerprint: str | None = None
    """The service must answer with this fingerprint, so that no other reward takes its place."""


class GateSection(Section):
    below: float
    """Where this source's own value is under it,"""
    cap: float
    """the reward of the response is at most this, after every other step."""


class SourceSection(Section):
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """What this source is called in metrics, samples and errors."""
    weight: float = 1.0
    """Factor in the sum; 0 only watches (and gates)."""
    scale: Literal["off", "running_std"] = "off"
    """Divide this source's values by the running standard deviation of all its training values so far."""
    clip: PositiveFloat | None = None
    """This source's values are held within -clip .. clip, after scaling, before the weight."""
    gate: GateSection | None = None
    """A failure here caps the total, whatever the other sources say."""
    deadline: PositiveFloat | None = None
    """Seconds for one attempt. Absent: 600 for a function, 60 for a request over HTTP. Not for the other kinds."""
    retries: int = Field(default=4, ge=0)
    """More attempts after one that failed; then the run saves a checkpoint and pauses."""
    retry_wait: float = Field(default=1.0, ge=0.0)
    """Seconds before the second attempt, doubled before each further one, at most 30."""
    model: ModelName | None = None
    """A reward model, named as in ``model.name``."""
    function: FunctionSpec | None = None
    """A function, named as in ``reward.function``."""
    http: HttpSection | None = None
    """A service in another process or on another machine."""
    code: CodeSection | None = None
    """Responses are code, run in a sandbox on the cases of their row (columns ``entry_point`` and ``cases``)."""

    @property
    def kind(self) -> str:
        return self.kinds[0]

    @property
    def kinds(self) -> list[str]:
        return [name for name, value in self if name in KINDS and value is not None]

    @property
    def patience(self) -> float | None:
        """Seconds for one attempt."""
        return DEADLINES.get(self.kind) if self.deadline is None else self.deadline

    @model_validator(mode="after")
    def has_one_kind(self) -> Self:
        if len(self.kinds) != 1:
            found = " and ".join(self.kinds) or "none of them"
            raise refused(
                "name",
                f"reward source `{self.name}` has {found}, and needs one of {', '.join(KINDS)}",
                f"write one of {', '.join(KINDS)} in the entry",
            )
        if self.deadline is not None and self.kind not in DEADLINES:
            raise refused(
                "deadline",
                f"reward source `{self.name}`: {UNTIMED[self.kind]}",
                "remove deadline",
            )
        return self
