"""Where a value may be a number or a section: is the mistake told for the kind that was written, at its key?"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, PositiveInt

from tightrope.config.base import Section
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_config
from tightrope.config.schema import RunConfig

BASE = "output: x\nmodel: {name: base}\ndata: {train: a.jsonl}\n"


class Ramp(Section):
    first: float = Field(alias="from")
    """First value."""
    to: float
    """Last value."""
    shape: Literal["linear", "cosine"] = "linear"
    """How it moves."""


class Dials(Section):
    beta: Annotated[float, Field(ge=0)] | Ramp = 0.1
    """A number or a ramp."""
    limit: Annotated[float | Ramp, Field()] | None = None
    """The same, or nothing."""
    seen: PositiveInt | bool = 3
    """Two kinds, none a section."""


class Config(RunConfig):
    stage: ClassVar[str] = "ppo"
    dials: Dials = Dials()
    """For these tests."""


def load(tmp_path, *overrides):
    path = tmp_path / "run.yaml"
    path.write_text(BASE)
    return load_config(path, overrides, Config)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("beta", "low", "wrong value of `dials.beta`; expected number, found 'low'"),
        ("beta", "-1", "wrong value of `dials.beta`; expected greater than or equal to 0, found -1"),
        ("beta", "{from: 1, to: 2, shpe: linear}", "unknown key `dials.beta.shpe`; did you mean `dials.beta.shape`?"),
        ("beta", "{from: 1, to: 2, shape: liner}", "wrong value of `dials.beta.shape`; expected linear or cosine"),
        ("beta", "{from: 1}", "`dials.beta.to` is missing; write `to:` under `dials.beta:`"),
        ("beta.shpe", "linear", "unknown key `dials.beta.shpe`; did you mean `dials.beta.shape`?"),
        ("bta", "{from: 1, to: 2}", "unknown key `dials.bta`; did you mean `dials.beta`?"),
        ("limit", "low", "wrong value of `dials.limit`; expected number, found 'low'"),
        ("limit", "{from: x, to: 2}", "wrong value of `dials.limit.from`; expected number, found 'x'"),
        ("seen", "many", "wrong value of `dials.seen`; expected "),
    ],
)
def test_the_kind_that_was_written_is_the_one_complained_about(tmp_path, key, value, says):
    with pytest.raises(TightropeError) as caught:
        load(tmp_path, f"dials.{key}={value}")
    said = str(caught.value)
    assert said.startswith(f"override dials.{key}: {says}")
    assert key == "beta.shpe" or "more mistake" not in said


def test_each_kind_is_taken(tmp_path):
    config = load(tmp_path, "dials.beta={from: 1, to: 2.5}", "dials.limit=3.0", "dials.seen=true")
    assert isinstance(config.dials.beta, Ramp) and config.dials.beta.first == 1 and config.dials.limit == 3.0
