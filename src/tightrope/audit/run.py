"""The whole audit: which measure looks at which pairs, in which order. Scores come from the callables it is given.

train and held-out pairs   accuracy of both, their gap; labels and coverage look at all of them
held-out pairs             calibration, lengths, flips by the model's own margins; the first of them are probed
policy's samples, votes    where they are given
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tightrope.audit import labels, measures, phrases
from tightrope.audit.coverage import Distance, coverage, distance
from tightrope.audit.intervals import Floats
from tightrope.audit.pairs import ScoredPairs, Scorer, TextPair, answer, clusters_of, scored
from tightrope.audit.policy import PolicySamples, on_policy
from tightrope.audit.probes import Answers, Yardstick, length_dose, probe_shifts
from tightrope.audit.report import Audit, Measured, Suspect
from tightrope.audit.verdict import verdict
from tightrope.maths.diagnostics import Interval

PROBED = 200
"""Answers that every probe changes, unless told otherwise: intervals of about 0.1 standard deviations."""
DOSES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is scored: training pairs, held-out pairs, probed answers, candidates of each kind of wording; and
    suspicious pairs told."""

    train: int = 2000
    held_out: int = 2000
    answers: int = PROBED
    wordings: int = 8
    suspects: int = 20


SHORT = Size(train=400, held_out=400, answers=60, wordings=4, suspects=5)
"""What ``rm train`` does at its end: about 4,000 answers scored."""


@dataclass(frozen=True)
class Material:
    """``can_write`` says whether the reward model's tokenizer knows a text. ``judge`` and its name, and the policy's
    samples, where there are any."""

    model: str
    train: Sequence[TextPair]
    held_out: Sequence[TextPair]
    score: Scorer
    can_write: Callable[[str], bool]
    judge: Scorer | None = None
    judge_name: str | None = None
    votes: Sequence[TextPair] = ()
    policy: PolicySamples | None = None


def audit(material: Material, size: Size | None = None, seed: int = 0) -> Audit:
    """Raises whatever the scorers raise, among them NonFiniteReward."""
    size = Size() if size is None else size
    train = scored(spread_evenly(material.train, size.train), material.score)
    held_out = scored(spread_evenly(material.held_out, size.held_out), material.score)
    missing: dict[str, str] = {}
    base = held_out if len(held_out) else train
    fields: dict[str, object] = {}
    fields |= accuracies(train, held_out, missing)
    fields |= of_labels(material, train, held_out, size, missing)
    every = [*material.train, *material.held_out]
    if len(every) > 1:
        fields["coverage"] = coverage(
            spread_evenly(material.train, size.train), held_out.pairs, len(set(clusters_of(every)))
        )
    if base.std:
        fields |= probed(material, train, held_out, base, size, seed, missing)
    else:
        missing["probes"] = "the reward does not vary, so shifts have no unit"
    fields |= of_policy(material, train, held_out, missing)
    measured = Measured(
        model=material.model,
        held_out_pairs=len(held_out),
        train_pairs=len(train),
        unit=base.std,
        judge=material.judge_name,
        missing=missing,
        **fields,  # pyright: ignore[reportArgumentType]
    )
    return Audit(measured, verdict(measured))


def spread_evenly(pairs: Sequence[TextPair], most: int) -> list[TextPair]:
    """
    >>> spread_evenly(list("abcdef"), 3)
    ['a', 'c', 'e']
    """
    if len(pairs) <= most:
        return list(pairs)
    return [pairs[i * len(pairs) // most] for i in range(most)]


def accuracies(train: ScoredPairs, held_out: ScoredPairs, missing: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    if len(train):
        found["train_accuracy"] = measures.share_right(train.margins, train.clusters)
    if not len(held_out):
        missing["accuracy"] = "no pair is held out"
        return found
    margins, clusters = held_out.margins, held_out.clusters
    accuracy = measures.share_right(margins, clusters)
    found["accuracy"] = accuracy
    found["kendall"] = Interval(*(2 * value - 1 for value in (accuracy.estimate, accuracy.low, accuracy.high)))
    if len(train):
        found["overfitting"] = measures.gap(measures.share_right(train.margins, train.clusters), accuracy)
    else:
        missing["overfitting"] = "the training pairs are not known"
    found["calibration"] = measures.calibration(margins, clusters)
    chosen, rejected = (
        np.array([len(text.split()) for text in texts], np.float64)
        for texts in ([p.chosen for p in held_out.pairs], [p.rejected for p in held_out.pairs])
    )
    found["matched"], found["unmatched"] = measures.length_matched(margins, chosen, rejected, clusters)
    found["shorter_wins"] = measures.shorter_wins(held_out.word_differences, clusters)
    return found


def of_labels(
    material: Material, train: ScoredPairs, held_out: ScoredPairs, size: Size, missing: dict[str, str]
) -> dict[str, object]:
    """The word model learns from all pairs there are; the reward model speaks where it scored."""
    pairs = [*material.train, *material.held_out]
    clusters = clusters_of(pairs)
    margins = labels.cross_fitted_margins(pairs, clusters) if pairs else None
    rate = None if margins is None else labels.flip_rate(margins, clusters)
    if margins is None or rate is None:
        missing["labels"] = f"fewer than {labels.LEAST_PAIRS} pairs, or nothing in their words tells them apart"
        return {}
    own = labels.flip_rate(held_out.margins, held_out.clusters) if len(held_out) else None
    doubts = labels.suspicion([(margins, rate)])
    place = {id(pair): index for index, pair in enumerate(pairs)}
    known = dict[int, float]()
    for part in (train, held_out):
        known |= {place[id(pair)]: float(m) for pair, m in zip(part.pairs, part.margins, strict=True)}
    if own is not None and known:
        where = np.array(list(known))
        theirs = labels.suspicion([(np.array(list(known.values())), own)])
        doubts[where] = (doubts[where] + theirs) / 2
    order = np.argsort(-doubts, kind="stable")[: size.suspects]
    suspects = tuple(
        Suspect(
            pairs[i].where,
            pairs[i].prompt.text,
            pairs[i].chosen,
            pairs[i].rejected,
            float(doubts[i]),
            known.get(int(i)),
        )
        for i in order
        if doubts[i] > 0.5
    )
    return {"flips": rate, "model_flips": own, "suspects": suspects}


def probed(
    material: Material,
    train: ScoredPairs,
    held_out: ScoredPairs,
    base: ScoredPairs,
    size: Size,
    seed: int,
    missing: dict[str, str],
) -> dict[str, object]:
    """Changed answers. Held-out ones where there are any."""
    answers, rivals = answers_of(base, size.answers)
    judged, judge_unit = None, 1.0
    found: dict[str, object] = {}
    grades = graded(base)
    if material.judge is not None:
        every = [answer(p.prompt, text) for p in base.pairs for text in (p.chosen, p.rejected)]
        verdicts = np.array(material.judge(every), np.float64)
        grades = verdicts
        if float(np.ptp(verdicts)):
            judged, judge_unit = verdicts[: len(answers)], float(verdicts.std())
        else:
            missing["judge"] = "the judge says the same of every answer"
    if grades is None:
        missing["rank"] = "neither a judge nor columns chosen_score and rejected_score"
    else:
        rewards = np.stack([base.chosen, base.rejected], axis=1).ravel()
        found["rank"] = measures.rank_agreement(rewards, grades, [c for c in base.clusters for _ in range(2)])
        found["rank_against"] = material.judge_name if material.judge is not None else "chosen_score, rejected_score"
    yardstick = Yardstick(material.score, base.std, None if judged is None else material.judge, judge_unit, judged)
    if not any(text.split() for text in answers.texts):
        missing["probes"] = "all answers are empty"
        return found
    shifts, unmeasured = probe_shifts(answers, yardstick, material.can_write, seed)
    missing |= unmeasured
    found["shifts"] = tuple(shifts)
    found["dose"] = tuple(length_dose(answers, yardstick, DOSES, seed))
    both = merged(train, held_out)
    tried = phrases.candidates(both, base.std, size.wordings)
    if not tried:
        missing["phrases"] = f"no wording stands in one answer alone of {phrases.LEAST_COUNT} pairs or more"
    found["phrases"] = tuple(phrases.proven(tried, answers, yardstick, material.can_write, rivals))
    return found


def answers_of(base: ScoredPairs, most: int) -> tuple[Answers, Floats]:
    """Both answers of the first pairs, side by side, and the reward of the chosen one beside each rejected one."""
    count = min(len(base), max(1, most // 2))
    pairs = base.pairs[:count]
    rewards = np.stack([base.chosen[:count], base.rejected[:count]], axis=1).ravel()
    rivals = np.full(2 * count, np.nan)
    rivals[1::2] = base.chosen[:count]
    answers = Answers(
        prompts=[pair.prompt for pair in pairs for _ in range(2)],
        texts=[text for pair in pairs for text in (pair.chosen, pair.rejected)],
        rewards=rewards,
        clusters=[cluster for cluster in base.clusters[:count] for _ in range(2)],
    )
    return answers, rivals


def graded(data: ScoredPairs) -> Floats | None:
    """The numbers behind the labels, one an answer, where every row has them."""
    known = [pair.graded for pair in data.pairs]
    if not known or any(pair is None for pair in known):
        return None
    return np.array([value for pair in known if pair is not None for value in pair], np.float64)


def merged(first: ScoredPairs, second: ScoredPairs) -> ScoredPairs:
    pairs = [*first.pairs, *second.pairs]
    return ScoredPairs(
        pairs,
        np.concatenate([first.chosen, second.chosen]),
        np.concatenate([first.rejected, second.rejected]),
        clusters_of(pairs),
    )


def of_policy(
    material: Material, train: ScoredPairs, held_out: ScoredPairs, missing: dict[str, str]
) -> dict[str, object]:
    found: dict[str, object] = {}
    if material.votes:
        voted = scored(material.votes, material.score)
        found["votes"] = measures.share_right(voted.margins, voted.clusters)
    if material.policy is None or not material.policy.samples:
        missing["policy"] = "no samples of a policy were given"
        return found
    policy = material.policy
    rewards = np.array(material.score(policy.samples), np.float64)
    judged = None if material.judge is None else np.array(material.judge(policy.samples), np.float64)
    found["policy"] = on_policy(policy, rewards, judged)
    found["distance"] = far(policy, train, held_out)
    return found


def far(policy: PolicySamples, train: ScoredPairs, held_out: ScoredPairs) -> Distance | None:
    """None without both kinds of pairs: what is usual is told by the held-out answers."""
    if not len(train) or not len(held_out):
        return None
    known, usual = (
        [text for pair in part.pairs for text in (pair.chosen, pair.rejected)] for part in (train, held_out)
    )
    return distance([sample.response for sample in policy.samples], policy.clusters, known, usual)
