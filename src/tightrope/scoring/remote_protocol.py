"""What do a run and a reward service say to each other? JSON over HTTP, version 1.

    GET  /v1/health    who answers: protocol, name and fingerprint of what scores
    POST /v1/rewards   a batch of texts in, one number a sample out, in their order
    GET  /openapi.json this page for programs; ``GET /`` for people

Every answer but 200 is ``{"error": "one line"}``. Numbers are written with all their digits, so that a reward is the
same float64 on both sides. A field that a side does not know is passed over: later versions only add.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import models_json_schema

from tightrope.config.errors import TightropeError, one_line

PROTOCOL = 1
HEALTH = f"/v{PROTOCOL}/health"
REWARDS = f"/v{PROTOCOL}/rewards"
OPENAPI = "/openapi.json"
PAGE = "/"


class Said(BaseModel):
    """Strict types; unknown fields are passed over."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", use_attribute_docstrings=True)


class AskedSample(Said):
    """One response to judge."""

    prompt: str
    """The prompt as text."""
    response: str
    """What the policy wrote, without its end token."""
    finish_reason: Literal["stop", "length"] = "stop"
    """``length``: the response was cut."""
    n_tokens: int = Field(default=0, ge=0)
    """Response tokens, counted by the policy's tokenizer."""
    index: int = Field(default=0, ge=0)
    """The row's number in the data set."""
    row: dict[str, Any] = Field(default_factory=dict)
    """The original row with all its columns."""


class RewardRequest(Said):
    """A batch of samples."""

    request_id: str = Field(min_length=1, max_length=100)
    """Any text; the answer repeats it, and logs on both sides name it."""
    samples: list[AskedSample] = Field(min_length=1)
    """What to judge."""


class RewardAnswer(Said):
    """One number a sample."""

    request_id: str
    """That of the request."""
    rewards: list[float]
    """In the order of the samples; finite, within float32."""
    parts: dict[str, list[float]] = Field(default_factory=dict)
    """What the rewards were made of, if the service tells: one number a sample under each name."""


class Health(Said):
    """Who answers."""

    status: Literal["ok"] = "ok"
    """``ok``, or no answer at all."""
    protocol: int = PROTOCOL
    """Version of this protocol."""
    name: str
    """Of the reward model or service."""
    fingerprint: str | None = None
    """Changes when the numbers do: here a hash of weights, tokenizer, chat template and what is read of the output."""


class Refusal(Said):
    """Any answer but 200."""

    error: str
    """What is wrong and what to do, in one line."""


def parsed_request(body: bytes) -> RewardRequest:
    """Raises TightropeError, in one line with the first thing that is wrong."""
    try:
        return RewardRequest.model_validate(json.loads(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(key) for key in first["loc"])
        raise TightropeError(one_line(first["msg"]), where=place or "the request") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise TightropeError("the request is not JSON", found=str(error)) from error


def written(said: Said) -> bytes:
    """Numbers as Python's repr writes them, which reads back to the same float64."""
    return json.dumps(said.model_dump(), allow_nan=False).encode()


ERRORS = {
    "400": "The request is not what it should be.",
    "401": "The token is missing or wrong.",
    "411": "No Content-Length.",
    "413": "The request is larger than this service takes.",
    "500": "The service could not give every sample a finite number.",
}
"""Statuses of a service and what they mean. 408, 429, 500, 502, 503 and 504 are asked again."""


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 description, its schemas made from the classes above."""
    kinds = (AskedSample, RewardRequest, RewardAnswer, Health, Refusal)
    _, schemas = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    refusals = {status: answer_of(Refusal, what) for status, what in ERRORS.items()}
    rewards = {
        "summary": "One number a sample, in their order.",
        "requestBody": {"required": True, "content": content_of(RewardRequest)},
        "responses": {"200": answer_of(RewardAnswer, "The rewards."), **refusals},
    }
    health = {
        "summary": "Who answers, and whether it is still the same reward.",
        "responses": {"200": answer_of(Health, "It is there."), "401": refusals["401"]},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Reward service", "version": str(PROTOCOL)},
        "security": [{"token": []}],
        "paths": {HEALTH: {"get": health}, REWARDS: {"post": rewards}},
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def content_of(kind: type[Said]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}


def answer_of(kind: type[Said], what: str) -> dict[str, Any]:
    return {"description": what, "content": content_of(kind)}
