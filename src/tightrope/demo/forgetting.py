"""What did the model forget on the way? Perplexity on plain English, and facts it should still know.

    perplexity = exp(-mean log-prob of each token given those before it)        (text: Python's own language reference)
    facts      = share of items whose right option has a higher mean log-prob a token than every wrong one

Both are of the model as it is exported, before and after; neither is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from tightrope.demo.facts import FACTS, Fact
from tightrope.maths.ragged import segment_sum
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role, load_policy
from tightrope.training.forgetting import perplexity
from tightrope.types import TokenRows

PIECE_TOKENS, PIECES = 128, 16
"""The text is read in pieces, so that no pass is large; both models read the same 2,000 tokens."""
PIECES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Knowledge:
    """``facts``: share of the fixed items that are right."""

    perplexity: float
    facts: float


@dataclass(frozen=True, slots=True)
class Forgetting:
    before: Knowledge
    after: Knowledge

    @property
    def perplexity_ratio(self) -> float:
        """1.1: worse by 10 %."""
        return self.after.perplexity / self.before.perplexity


def knowledge_of(folder: Path) -> Knowledge:
    role, tokenizer = load_policy(folder), load_tokenizer(folder)
    return Knowledge(
        perplexity(role, pieces_of(tokenizer), PIECES_AT_ONCE * PIECE_TOKENS), facts_right(role, tokenizer, FACTS)
    )


def pieces_of(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The first pieces of plain English, from the documentation that comes with Python."""
    from pydoc_data.topics import topics

    text = " ".join("\n".join(topics[name] for name in sorted(topics)).split())
    ids = tokenizer(text[: 8 * PIECE_TOKENS * PIECES], add_special_tokens=False)["input_ids"]
    assert isinstance(ids, list)
    starts = range(0, min(len(ids), PIECE_TOKENS * PIECES), PIECE_TOKENS)
    return [piece for start in starts if len(piece := ids[start : start + PIECE_TOKENS]) > 1]


def facts_right(role: Role, tokenizer: PreTrainedTokenizerBase, facts: Sequence[Fact]) -> float:
    """Share of facts whose right option is the likeliest."""
    right = [max(scores) == scores[0] for scores in (option_scores(role, tokenizer, fact) for fact in facts)]
    return sum(right) / len(right)


@torch.no_grad()
def option_scores(role: Role, tokenizer: PreTrainedTokenizerBase, fact: Fact) -> list[float]:
    """Mean log-prob a token of each option after the item's beginning, the right one first."""

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    start = ids(fact.start)
    rows = TokenRows.of([(start, ids(f" {option}")) for option in (fact.right, *fact.wrong)])
    sums = segment_sum(token_logprobs(role, rows, 1.0).logprobs, rows.action_offsets)
    return (sums / rows.action_counts).tolist()
