"""Which files do the demo's stages read? JSONL that a person can open, in the forms the library takes from anybody.

demonstrations.jsonl   prompt, completion                       sentences to imitate
prompts.jsonl          prompt, gold_judge                       openings for pairs and PPO
held_out.jsonl         prompt, gold_judge                       openings nobody trains on
preferences.jsonl      prompt, chosen, rejected, synthetic, judge, chosen_score, rejected_score
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tightrope.demo.corpus import OPENING_WORDS, Corpus, continued, split_opening, unique
from tightrope.demo.judges import GOLD_NAME, JUDGE_COLUMN, GoldJudge, first_is_preferred
from tightrope.demo.tokenizer import is_known


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """Where each part lies in the demo's folder."""

    folder: Path

    @property
    def demonstrations(self) -> Path:
        return self.folder / "demonstrations.jsonl"

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.jsonl"

    @property
    def held_out(self) -> Path:
        return self.folder / "held_out.jsonl"

    @property
    def preferences(self) -> Path:
        return self.folder / "preferences.jsonl"

    @property
    def gold_judge(self) -> Path:
        return self.folder / "gold_judge.npz"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two responses of one model to one prompt."""

    prompt: str
    first: str
    second: str


def write_texts(
    files: DemoFiles,
    corpus: Corpus,
    vocabulary: Sequence[str] | None,
    seed: int,
    *,
    prompts: int,
    held_out: int,
    cue: str = "",
    gap: str = "",
) -> None:
    """Demonstrations, prompts and held-out prompts; only words of the vocabulary (None: all), no opening twice.

    ``cue`` begins each prompt, ``gap`` each completion: a tokenizer that keeps spaces has them where words begin.
    """
    known = None if vocabulary is None else frozenset(vocabulary)

    def usable(text: str) -> bool:
        return known is None or is_known(text, known)

    words = random.Random(f"openings {seed}")
    learned = (split_opening(text, words.choice(OPENING_WORDS)) for text in corpus.writing if usable(text))
    asked = (split_opening(text, words.choice(OPENING_WORDS)) for text in corpus.prompting)
    openings = unique(pair[0] for pair in asked if pair and usable(pair[0]))
    write_jsonl(
        files.demonstrations, ({"prompt": cue + pair[0], "completion": gap + pair[1]} for pair in learned if pair)
    )
    judge = {JUDGE_COLUMN: str(files.gold_judge)}
    write_jsonl(files.held_out, ({"prompt": cue + text, **judge} for text in openings[:held_out]))
    write_jsonl(files.prompts, ({"prompt": cue + text, **judge} for text in openings[held_out : held_out + prompts]))


def widest_pairs(prompts: Sequence[str], responses: Sequence[Sequence[str]], gold: GoldJudge, seed: int) -> list[Pair]:
    """Of the responses to each prompt the two that the gold judge tells apart best, in random order.

    Two random responses differ so little that a quarter of the noisy votes would contradict the judge.
    """
    sides = random.Random(f"sides {seed}")
    texts = [continued(prompt, text) for prompt, several in zip(prompts, responses, strict=True) for text in several]
    scores = iter(gold.log_odds(texts).tolist())
    pairs: list[Pair] = []
    for prompt, several in zip(prompts, responses, strict=True):
        ranked = sorted((next(scores), text) for text in several)
        ends = [ranked[0][1], ranked[-1][1]]
        sides.shuffle(ends)
        pairs.append(Pair(prompt, *ends))
    return pairs


def write_preferences(files: DemoFiles, pairs: Sequence[Pair], gold: GoldJudge, seed: int) -> int:
    """Labels pairs by noisy votes of the gold judge and says how many were written.

    Pairs with an empty or twice the same response say nothing and are left out.
    """
    told = [pair for pair in pairs if pair.first.strip() and pair.second.strip() and pair.first != pair.second]
    first = gold.log_odds([continued(pair.prompt, pair.first) for pair in told]).tolist()
    second = gold.log_odds([continued(pair.prompt, pair.second) for pair in told]).tolist()
    votes = first_is_preferred(first, second, seed)
    rows = zip(told, first, second, votes, strict=True)
    write_jsonl(files.preferences, (preference(*row) for row in rows))
    return len(told)


def preference(pair: Pair, first: float, second: float, first_wins: bool) -> dict[str, object]:
    answers = [(pair.first, first), (pair.second, second)]
    (chosen, chosen_score), (rejected, rejected_score) = answers if first_wins else reversed(answers)
    return {
        "prompt": pair.prompt,
        "chosen": chosen,
        "rejected": rejected,
        "synthetic": True,
        "judge": GOLD_NAME,
        "chosen_score": round(chosen_score, 4),
        "rejected_score": round(rejected_score, 4),
    }


def write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
