"""Does the glossary hold the words of the field that the code uses, one for each thing?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
WORDS = [word.strip() for left, _ in ROWS[1:] for word in left.split(",")]
NEEDED = [
    "prompt", "response", "rollout", "policy", "critic", "reference", "reward model", "logprobs", "ref_logprobs",
    "old_logprobs", "values", "rewards", "advantages", "returns", "ratio", "clip_range", "clip_fraction", "approx_kl",
    "explained_variance", "entropy_tok", "beta", "gamma", "lam", "epoch", "minibatch", "microbatch", "step",
]  # fmt: skip


@pytest.mark.parametrize("word", NEEDED)
def test_the_glossary_has_the_word(word) -> None:
    assert word in WORDS


def test_no_word_is_explained_twice() -> None:
    assert len(WORDS) == len(set(WORDS))


@pytest.mark.parametrize("word", [word for word in WORDS if "_" in word])
def test_a_word_with_an_underscore_is_a_name_in_the_code(word) -> None:
    assert any(word in path.read_text() for path in (ROOT / "src").rglob("*.py"))
