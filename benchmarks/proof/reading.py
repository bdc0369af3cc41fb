"""What was sampled, read from the texts of a rollout: which action was taken in which state, and what it earned.

Nothing here looks at token rows, offsets or positions of the library, because those are what is checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.proof.problem import Array, Problem, Scale, logprobs_of
from tightrope.types import Rollout

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Response:
    """``prompt`` its number in the problem; ``tokens`` with the end token where it was sampled."""

    prompt: int
    tokens: tuple[int, ...]
    cut: bool


@dataclass(frozen=True)
class Reading:
    """Actions of all responses one after the other: state (prompt, position, token before) and token. ``starts`` are
    the first actions, ``ends`` one beyond the last."""

    problem: Problem
    responses: tuple[Response, ...]
    prompt: Indices
    position: Indices
    before: Indices
    action: Indices
    starts: Indices
    ends: Indices

    @staticmethod
    def of(problem: Problem, rollout: Rollout) -> Reading:
        responses = tuple(
            response_of(problem, rollout.prompts[index].token_ids, text, reason == "length")
            for index, text, reason in zip(
                rollout.prompt_index.tolist(), rollout.responses, rollout.finish_reason, strict=True
            )
        )
        rows: list[tuple[int, int, int, int]] = []
        for response in responses:
            prompt = problem.prompts[response.prompt]
            before = prompt[-1]
            for step, token in enumerate(response.tokens):
                rows.append((response.prompt, len(prompt) - 1 + step, before, token))
                before = token
        ends = np.cumsum([len(response.tokens) for response in responses])
        columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        return Reading(problem, responses, *columns, starts=np.concatenate([[0], ends[:-1]]), ends=ends)

    def logprobs(self, logits: Array) -> Array:
        return logprobs_of(self.problem, logits)[self.prompt, self.position, self.before, self.action]

    def entropy(self, logits: Array) -> Array:
        logp = logprobs_of(self.problem, logits)[self.prompt, self.position, self.before]
        return -(np.exp(logp) * logp).sum(-1)

    def values(self, table: Array) -> Array:
        return table[self.prompt, self.position, self.before]

    def end_values(self, table: Array) -> Array:
        """After the last action: 0 where the response ended itself."""
        return np.array(
            [
                table[r.prompt, len(self.problem.prompts[r.prompt]) - 1 + len(r.tokens), r.tokens[-1]] if r.cut else 0.0
                for r in self.responses
            ]
        )

    def scores(self, scale: Scale) -> Array:
        return np.array(
            [
                scale.gain * sum(self.problem.rewards[r.prompt, step, token] for step, token in enumerate(r.tokens))
                + scale.bias
                - self.problem.cut_penalty * r.cut
                for r in self.responses
            ]
        )

    def per_response(self, actions: Array) -> Array:
        return np.array([actions[start:end].sum() for start, end in zip(self.starts, self.ends, strict=True)])

    def for_each_action(self, responses: Array) -> Array:
        return np.repeat(responses, self.ends - self.starts)

    def one_later(self, actions: Array, ending: Array) -> Array:
        """The next action's number of the same response; after the last, ``ending``."""
        later = np.concatenate([actions[1:], [0.0]])
        later[self.ends - 1] = ending
        return later

    def to_go(self, actions: Array) -> Array:
        """Σ from each action to the last of its response."""
        pieces = [actions[start:end] for start, end in zip(self.starts, self.ends, strict=True)]
        return np.concatenate([piece[::-1].cumsum()[::-1] for piece in pieces])

    def visited(self) -> NDArray[np.bool_]:
        """States in which an action was taken, [prompts · positions · vocabulary]."""
        problem = self.problem
        seen = np.zeros((len(problem.prompts), problem.positions, problem.vocabulary), dtype=bool)
        seen[self.prompt, self.position, self.before] = True
        return seen.flatten()


def response_of(problem: Problem, prompt: tuple[int, ...], text: str, cut: bool) -> Response:
    words = [int(word[1:]) for word in text.split()]
    if not cut:
        assert problem.end is not None
        words.append(problem.end)
    return Response(problem.prompts.index(prompt), tuple(words), cut)
