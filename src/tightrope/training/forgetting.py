"""What does the model forget on the way? Perplexity on plain text that nothing is trained on.

perplexity = exp(-mean log-prob of each token given those before it in its piece), at temperature 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role
from tightrope.types import TOKENS_AT_ONCE, TokenRows, microbatch_indices


@torch.no_grad()
def perplexity(role: Role, pieces: Sequence[Sequence[int]], token_budget: int | None = TOKENS_AT_ONCE) -> float:
    """Of every token but the first of each piece."""
    rows = TokenRows.of([(piece[:1], piece[1:]) for piece in pieces])
    groups = microbatch_indices(rows.lengths, token_budget)
    total = sum(float(token_logprobs(role, rows.select(group), 1.0).logprobs.double().sum()) for group in groups)
    return math.exp(-total / rows.n_actions)
