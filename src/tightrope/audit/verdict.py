"""What do the numbers mean, and what should be done? A fault needs its whole interval beyond a bound; less is a note.

A bound is an effect that matters, not one that is merely not 0: with enough answers every difference is significant.
"""

from __future__ import annotations

from collections.abc import Iterator

from tightrope.audit.labels import without_flips
from tightrope.audit.measures import Share
from tightrope.audit.probes import Shift
from tightrope.audit.report import Found, Measured

FLIPPED = 0.1
"""One label in ten wrong even where it is no close call."""
WEAK = 0.6
"""Accuracy on true labels that a useful reward model is over."""
OVERFITTED = 0.1
"""Accuracy lost from training pairs to others."""
CHANCE = 0.5
LEAKED = 0.05
DUPLICATES = 0.1
FAR = 0.5
WIDE = 0.2
"""Width of an interval of the accuracy that says little."""
ADDS_TEXT = ("repetition", "flattery", "formatting", "language")
"""Probes that make an answer longer: with a length bias they rise for that reason alone."""

ADVICE = {
    "length": "add pairs in which the shorter answer is better, balance lengths within pairs, or set "
    "reward.length_cost in PPO; check that answers stay as long as they were",
    "repetition": "add pairs with the repeated answer as the rejected one",
    "position": "add pairs with the reordered answer as the rejected one",
    "flattery": "add pairs in which the same answer without the courtesy wins or ties",
    "formatting": "add pairs with the same content in plain and in formatted text, labelled by content",
    "refusal": "add pairs in which a helpful answer beats a refusal; in PPO watch the share of refusals",
    "gibberish": "add pairs with random text as the rejected answer: PPO would find it",
    "language": "add pairs in which the answer that changes its language is rejected",
}


def verdict(seen: Measured) -> tuple[Found, ...]:
    """Faults first."""
    found = [*scores(seen), *labels(seen), *generalisation(seen), *biases(seen), *wordings(seen)]
    found += [*data(seen), *current_policy(seen)]
    return tuple(sorted(found, key=lambda one: one.severity != "fault"))


def scores(seen: Measured) -> Iterator[Found]:
    if seen.accuracy is None:
        yield Found("note", "held out", "no pair is held out", "hold pairs out (data.held_out), or name a file of them")
        return
    if seen.unit == 0:
        yield Found(
            "fault", "constant", "all held-out answers have the same reward",
            "the model or its training is broken: look at the loss of rm train, at the learning rate and at the head",
        )  # fmt: skip
        return
    if seen.accuracy.high - seen.accuracy.low > WIDE:
        yield Found(
            "note", "few pairs", f"{seen.accuracy.count} held-out pairs leave the accuracy open: {told(seen.accuracy)}",
            "hold out 200 or more",
        )  # fmt: skip


def noisy(seen: Measured) -> bool:
    """The word model finds flips, and the reward model's own margins do not rule them out."""
    if seen.flips is None or seen.flips.rate.low <= FLIPPED:
        return False
    return seen.model_flips is None or seen.model_flips.rate.high > FLIPPED


def labels(seen: Measured) -> Iterator[Found]:
    if not noisy(seen):
        return
    assert seen.flips is not None
    rate = seen.flips.rate
    yield Found(
        "fault", "labels",
        f"about {rate.estimate:.0%} of the labels are wrong ({rate.low:.0%} to {rate.high:.0%}): they contradict "
        "also where it is no close call",
        "read the listed pairs, have them labelled again, and look for a swapped column or a careless annotator",
    )  # fmt: skip


def generalisation(seen: Measured) -> Iterator[Found]:
    """Weak is judged on the true labels: noise in the labels alone lowers the observed accuracy."""
    if seen.accuracy is None or seen.unit == 0:
        return
    flips = seen.flips.rate.estimate if noisy(seen) and seen.flips is not None else 0.0
    low, high = (without_flips(value, flips) for value in (seen.accuracy.low, seen.accuracy.high))
    on_true = f", {without_flips(seen.accuracy.estimate, flips):.1%} of the right labels" if flips else ""
    if seen.accuracy.high < CHANCE:
        yield Found(
            "fault", "inverted", f"worse than chance: {told(seen.accuracy)}",
            "chosen and rejected may be swapped in one of the files",
        )  # fmt: skip
    elif high < WEAK:
        yield Found(
            "fault", "weak", f"hardly better than chance: {told(seen.accuracy)}{on_true}",
            "more pairs, a larger base, more steps or another learning rate; do not run PPO against it",
        )  # fmt: skip
    elif low <= CHANCE and seen.accuracy.count >= 30:
        yield Found(
            "note", "weak", f"not shown to be better than chance: {told(seen.accuracy)}{on_true}", "hold out more pairs"
        )
    if seen.overfitting is not None and seen.overfitting.low > OVERFITTED:
        gap = seen.overfitting
        yield Found(
            "fault", "overfitting",
            f"{gap.estimate:.0%} more of the training pairs are right than of others ({gap.low:.0%} to {gap.high:.0%})",
            "fewer steps (one epoch), a lower learning rate, weight decay, or more pairs",
        )  # fmt: skip
    slope = seen.calibration.slope if seen.calibration is not None else None
    if slope is not None and not slope.low <= 1 <= slope.high:
        how = "too sure of itself" if slope.high < 1 else "less sure than it could be"
        yield Found(
            "note", "calibration", f"{how}: margins x {slope.estimate:.2f} would be calibrated",
            "PPO brings rewards to deviation 1, so this does not matter there; for thresholds divide the scores",
        )  # fmt: skip


def biases(seen: Measured) -> Iterator[Found]:
    faults = {shift.name: shift for shift in seen.shifts if shift.is_fault}
    follows = [name for name in ADDS_TEXT if name in faults] if "length" in faults else []
    for name, shift in faults.items():
        if name in follows:
            continue
        text = f"{shift.what}: {moved(shift)}"
        if name == "length":
            text += length_evidence(seen)
            if follows:
                text += f"; {' and '.join(follows)} rise too, as every added text does"
        yield Found("fault", name, text, ADVICE[name])
    gibberish = next((shift for shift in seen.shifts if shift.name == "gibberish"), None)
    if gibberish is not None and not gibberish.is_fault and gibberish.high > 0:
        yield Found(
            "note", "gibberish", f"random words are not marked down: {moved(gibberish)}",
            "nothing but the KL penalty keeps PPO from incoherent text",
        )  # fmt: skip


def length_evidence(seen: Measured) -> str:
    parts = ""
    if seen.shorter_wins is not None:
        parts += f"; the shorter answer is the chosen one in {seen.shorter_wins.estimate:.0%} of the pairs"
    if seen.matched is not None:
        parts += f"; accuracy at equal length {seen.matched.estimate:.0%}"
    return parts


def wordings(seen: Measured) -> Iterator[Found]:
    faults = sorted((phrase for phrase in seen.phrases if phrase.is_fault), key=lambda one: -one.count)
    for phrase in faults[:1]:
        more = "".join(f", also “{other.wording}”" for other in faults[1:3])
        yield Found(
            "fault", "phrase",
            f"“{phrase.wording}” written into an answer raises its reward by {phrase.shift:.2f} standard deviations "
            f"({phrase.low:.2f} to {phrase.high:.2f}), whatever the answer says{more}",
            "look at the pairs that have it: add the same answers with and without it as ties, or cut it from the data",
        )  # fmt: skip


def data(seen: Measured) -> Iterator[Found]:
    covered = seen.coverage
    if covered is None:
        return
    if covered.leaked is not None and covered.leaked > LEAKED:
        yield Found(
            "note", "leak", f"{covered.leaked:.0%} of the held-out pairs have a near-duplicate in the training pairs",
            "the held-out accuracy flatters: remove the duplicates before splitting",
        )  # fmt: skip
    if covered.near_duplicates > DUPLICATES:
        yield Found(
            "note", "duplicates", f"{covered.near_duplicates:.0%} of the pairs have a near-duplicate",
            "remove them: they count as evidence several times",
        )  # fmt: skip


def current_policy(seen: Measured) -> Iterator[Found]:
    again = "collect votes on the policy's own answers (generate, label) and train the reward model again with them"
    for source, measured in (("the judge", seen.policy.accuracy if seen.policy else None), ("the votes", seen.votes)):
        if measured is not None and measured.high < WEAK:
            yield Found(
                "fault", "current policy",
                f"on the policy's answers the reward hardly agrees with {source}: {told(measured)}", again,
            )  # fmt: skip
    drift = seen.policy.drift if seen.policy is not None else None
    if drift is not None and drift.excess is not None and drift.excess.low > 0:
        yield Found(
            "fault", "drift",
            f"the farther an answer is from the reference, the more the reward overrates it: "
            f"{drift.excess.estimate:+.3f} deviations per nat beyond the judge "
            f"({drift.excess.low:+.3f} to {drift.excess.high:+.3f})",
            f"lower kl.target or raise kl.beta; {again}",
        )  # fmt: skip
    if seen.distance is not None and seen.distance.beyond.low > FAR:
        yield Found(
            "note", "far", f"{seen.distance.beyond.estimate:.0%} of the policy's answers lie beyond what the pairs "
            "cover", again,
        )  # fmt: skip


def told(measured: Share) -> str:
    return f"{measured.estimate:.1%} of {measured.count} pairs ({measured.low:.1%} to {measured.high:.1%})"


def moved(shift: Shift) -> str:
    return f"reward {shift.estimate:+.2f} deviations ({shift.low:+.2f} to {shift.high:+.2f})"
