"""What does the reward model think of a response? Text in, one number out, whatever tokenizer wrote it.

The conversation is built from the original row and the response's text by the same chat format as in reward
training, the end token always added (on this copy: the policy's own tokens are never touched).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tightrope.data.chat_format import ChatFormat
from tightrope.models.packed_forward import sequence_scores
from tightrope.models.roles import Role
from tightrope.scoring.checked import checked_rewards
from tightrope.types import Prompt, Sample, TokenRows, microbatch_indices

FINGERPRINT_TEXTS = (
    ("The film was", "good."),
    ("The film was", "not good at all, and far too long."),
    ("Who are you?", ""),
    ("1 2 3", "4 5 6 7 8"),
    ("a", "the"),
    ("in the", "house"),
)
"""Prompts and answers whose scores identify a reward model: weights, tokenizer, and how a conversation is written.
Those whose prompt holds nothing that the tokenizer knows are left out."""


class RewardModel:
    """A RewardSource. ``cut`` counts the conversations of the last call that were too long for the model's context:
    they lost the beginning of their prompt and kept their answer.
    """

    def __init__(self, role: Role, tokenizer: PreTrainedTokenizerBase, token_budget: int | None = None) -> None:
        self._role = role
        self._format = ChatFormat(tokenizer)
        self._token_budget = token_budget
        self.cut = 0

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Raises NonFiniteReward where the model's score is not a number."""
        conversations = [self.conversation(sample) for sample in samples]
        context = self._role.network.context_length
        self.cut = sum(len(prompt) + len(answer) > context for prompt, answer in conversations)
        rows = TokenRows.of([fitted(prompt, answer, context) for prompt, answer in conversations])
        return checked_rewards(scores_of(self._role, rows, self._token_budget), samples, "reward model")

    def knows(self, prompt: str) -> bool:
        """Whether the tokenizer makes any token of this text."""
        return len(self._format.plain_ids(prompt)) > 0

    def conversation(self, sample: Sample) -> tuple[list[int], list[int]]:
        """Prompt and answer ids in the reward model's own tokens."""
        _, prompt = self._format.prompt(sample.prompt.row)
        return list(prompt), list(self._format.answer_ids(sample.response, end=True))


def fingerprints(source: RewardModel) -> list[float]:
    """The scores of ``FINGERPRINT_TEXTS``: recorded at export, and reproduced before the model is used."""
    asked = [
        Sample(Prompt(index, (), prompt, {"prompt": prompt}), answer, "stop", 0)
        for index, (prompt, answer) in enumerate(FINGERPRINT_TEXTS)
        if source.knows(prompt)
    ]
    return source.score(asked) if asked else []


def fitted(prompt: list[int], answer: list[int], context: int) -> tuple[list[int], list[int]]:
    """The last ``context`` ids: the prompt's beginning goes first, and of the answer only what cannot fit at all.

    >>> fitted([1, 2, 3], [4, 5], 4), fitted([1, 2], [3, 4, 5], 2)
    (([2, 3], [4, 5]), ([], [4, 5]))
    """
    answer = answer[-context:]
    return prompt[max(0, len(prompt) + len(answer) - context) :], answer


@torch.no_grad()
def scores_of(role: Role, rows: TokenRows, token_budget: int | None) -> Tensor:
    """One score a sequence, in order; sequences of similar length share a pass. f32 [sequences]."""
    lengths, order = rows.lengths.sort(stable=True)
    groups = [order[group] for group in microbatch_indices(lengths, token_budget)]
    scores = torch.empty(rows.n_sequences)
    for group in groups:
        scores[group] = sequence_scores(role, rows.select(group)).float()
    return scores
