"""What does another process think of a response? Batches of text over HTTP (``remote_protocol``), one number each back.

Whatever goes wrong is tried again where that may help, and then told in one line. What a sample is worth does not
depend on how often it was asked for, so an answer that came at the third attempt trains as the first would have.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tightrope.config.errors import TightropeError
from tightrope.scoring.checked import checked_rewards
from tightrope.scoring.http_calls import Breaker, CallFailed, Endpoint, Patience, Waiting, call, failed, persistently
from tightrope.scoring.remote_protocol import HEALTH, PROTOCOL, REWARDS, AskedSample, Health, RewardRequest, written
from tightrope.types import Sample


@dataclass(frozen=True)
class Asking:
    """``batch_size`` samples a request (None: all at once, as a reward model in this process would see them);
    ``columns`` of the row that are sent (None: all)."""

    batch_size: int | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Answered:
    """``parts``: name -> one number a sample, where the service tells them."""

    rewards: list[float]
    parts: dict[str, list[float]]


class HttpReward:
    """A RewardSource. ``parts`` are those of the last call."""

    def __init__(
        self,
        endpoint: Endpoint,
        patience: Patience,
        breaker: Breaker,
        asking: Asking | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._patience = patience
        self._breaker = breaker
        self._asking = Asking() if asking is None else asking
        self._waiting = waiting
        self.parts: dict[str, list[float]] = {}

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Raises CallFailed when the service gives no numbers, TightropeError for a row that JSON cannot carry."""
        size = self._asking.batch_size or max(1, len(samples))
        answers = [self._score(samples[start : start + size]) for start in range(0, len(samples), size)]
        names = set(answers[0].parts).intersection(*(answer.parts for answer in answers)) if answers else set()
        self.parts = {name: [part for answer in answers for part in answer.parts[name]] for name in sorted(names)}
        return [reward for answer in answers for reward in answer.rewards]

    def _score(self, samples: Sequence[Sample]) -> Answered:
        if self._breaker.is_open:
            raise failed(self._endpoint, "the service failed too often and is left alone for a while")
        request = RewardRequest(request_id=uuid.uuid4().hex, samples=asked_samples(samples, self._asking.columns))
        body = written(request)

        def attempt() -> Answered:
            return checked_answer(self._endpoint, call(self._endpoint, REWARDS, body), request.request_id, samples)

        return persistently(attempt, self._patience, self._breaker, self._waiting)

    def health(self) -> Health:
        """Who answers. Raises CallFailed; a start-up question, so it is asked once, with little patience."""
        return checked_health(self._endpoint)


def asked_samples(samples: Sequence[Sample], columns: Sequence[str] | None = None) -> list[AskedSample]:
    """Raises TightropeError with row and column where a value is none of JSON's."""
    return [
        AskedSample(
            prompt=sample.prompt.text,
            response=sample.response,
            finish_reason=sample.finish_reason,
            n_tokens=sample.n_tokens,
            index=sample.prompt.index,
            row=sent_row(sample.prompt.row, columns, sample.prompt.index),
        )
        for sample in samples
    ]


def sent_row(row: Mapping[str, Any], columns: Sequence[str] | None, index: int) -> dict[str, Any]:
    """The columns that are sent.

    >>> sent_row({"prompt": "a", "id": 7}, ["id"], 0)
    {'id': 7}
    """
    chosen = {name: row[name] for name in (row if columns is None else columns) if name in row}
    for name, value in chosen.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TightropeError(
                f"column {name!r} of data row {index} cannot be sent as JSON",
                found=str(error),
                fix="name the columns to send under `columns`, without it",
            ) from error
    return chosen


def checked_answer(endpoint: Endpoint, answer: Any, request_id: str, samples: Sequence[Sample]) -> Answered:
    """One finite number a sample, for the reward and for each part. Raises CallFailed."""
    if not isinstance(answer, dict) or "rewards" not in answer:
        found = ", ".join(map(str, answer)) if isinstance(answer, dict) else type(answer).__name__
        raise failed(
            endpoint, "the answer is not one of this protocol", expected="an object with `rewards`", found=found
        )
    if answer.get("request_id") != request_id:
        raise failed(endpoint, "the answer belongs to another request", expected=request_id, passing=True)
    parts = answer.get("parts") or {}
    if not isinstance(parts, dict):
        raise failed(endpoint, "`parts` is not an object", found=type(parts).__name__)
    try:
        return Answered(
            checked_rewards(answer["rewards"], samples, endpoint.url),
            {
                str(name): checked_rewards(values, samples, f"{endpoint.url} part {name}")
                for name, values in parts.items()
            },
        )
    except TightropeError as error:
        raise told_by(error) from error


def told_by(error: TightropeError) -> CallFailed:
    """Not worth another attempt: the same texts would get the same answer."""
    return CallFailed(error.what, where=error.where, expected=error.expected, found=error.found, fix=error.fix)


def checked_health(endpoint: Endpoint) -> Health:
    answer = call(endpoint, HEALTH)
    try:
        health = Health.model_validate(answer)
    except ValidationError as error:
        raise failed(
            endpoint, "this is no reward service", expected="status, protocol and name", found=shown_keys(answer)
        ) from error
    if health.protocol != PROTOCOL:
        raise failed(
            endpoint,
            "the service speaks another version of the protocol",
            expected=str(PROTOCOL),
            found=str(health.protocol),
        )
    return health


def shown_keys(answer: Any) -> str:
    return ", ".join(map(str, answer)) if isinstance(answer, dict) else type(answer).__name__


def require_fingerprint(endpoint: Endpoint, health: Health, expected: str) -> None:
    """Raises CallFailed unless what answers is what the run was started with, or what the config names."""
    if health.fingerprint != expected:
        raise failed(
            endpoint,
            f"another reward answers here ({health.name})",
            expected=f"fingerprint {expected}",
            found=str(health.fingerprint),
            fix="serve the model that this run began with, or start a new run",
        )
