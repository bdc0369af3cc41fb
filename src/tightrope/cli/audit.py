"""``tightrope rm audit``: can this reward model be trusted, and if not, what is wrong and what to do?"""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tightrope.cli.arguments import Json, Seed
from tightrope.cli.flags import require_numbers
from tightrope.config.errors import TightropeError
from tightrope.storage.samples import printable

if TYPE_CHECKING:
    from tightrope.audit.measures import Share
    from tightrope.audit.report import Audit, Measured
    from tightrope.maths.diagnostics import Interval

SHOWN_LETTERS = 100
SHOWN_SUSPECTS = 5


def audit(
    model: Path,
    pairs: Path | None = None,
    /,
    *,
    train: Annotated[Path | None, Parameter(help="The pairs it was trained on; of a run they are known.")] = None,
    samples: Annotated[
        Path | None, Parameter(help="Answers of the current policy: a ppo or rloo run, or a file with completions.")
    ] = None,
    votes: Annotated[Path | None, Parameter(help="A label file with votes of people on answers of the policy.")] = None,
    judge: Annotated[
        str | None, Parameter(help="Another judge: module:function, file.py:function or a reward-model folder.")
    ] = None,
    limit: Annotated[int | None, Parameter(help="Look at no more pairs of each side.")] = None,
    short: Annotated[bool, Parameter(negative=(), help="Fewer pairs and answers, as at the end of rm train.")] = False,
    seed: Seed = 0,
    output: Annotated[Path | None, Parameter(help="Write audit.json into this folder.")] = None,
    json: Json = False,
) -> None:
    """Measure a reward model on held-out pairs, look for biases in it and for faults in its data, and say what to do.

    Parameters
    ----------
    model
        Reward-model folder, or run of `rm train`.
    pairs
        Held-out pairs: prompt, chosen, rejected. Absent: those that the run held out.
    """
    require_numbers({"--limit": limit}, 1.0, seed)
    folder = None if output is None else made(output)
    from tightrope.assemble.reward_audit import Asked, audit_reward_model, limited
    from tightrope.audit.run import SHORT, Size

    asked = Asked(model, pairs, train, samples, votes, judge, seed)
    done = audit_reward_model(asked, limited(SHORT if short else Size(), limit))
    for line in lines(done):
        print(line)
    if folder is not None:
        write(done, folder)
    if json:
        print(json_format.dumps(done.to_dict(), sort_keys=True))


def made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TightropeError("the folder cannot be made", where="--output", found=error.strerror) from error
    return folder


def write(done: Audit, folder: Path) -> None:
    path = folder / "audit.json"
    path.write_text(json_format.dumps(done.to_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"written: {path}")


def lines(done: Audit) -> Iterator[str]:
    """The verdict last, where a person looks."""
    seen = done.measured
    yield f"{seen.model}: {seen.train_pairs} training and {seen.held_out_pairs} held-out pairs; intervals are 95 %"
    yield from accuracy_lines(seen)
    yield from shift_lines(seen)
    yield from phrase_lines(seen)
    yield from data_lines(seen)
    yield from policy_lines(seen)
    if seen.missing:
        yield "\nnot measured"
        yield from (f"  {name:<22} {why}" for name, why in sorted(seen.missing.items()))
    yield f"\nverdict: {done.verdict}"
    for found in done.found:
        yield f"  {found.severity}  {found.name}: {printable(found.seen)}"
        yield f"         what to do: {found.advice}"


def accuracy_lines(seen: Measured) -> Iterator[str]:
    yield "\nright order"
    named = {
        "held-out pairs": seen.accuracy,
        "training pairs": seen.train_accuracy,
        "equal length": seen.matched,
        "unequal length": seen.unmatched,
        "votes of people": seen.votes,
    }
    yield from (f"  {name:<22} {told_share(share)}" for name, share in named.items() if share is not None)
    if seen.overfitting is not None:
        yield f"  {'training - held-out':<22} {told(seen.overfitting, '+.1%')}"
    if seen.shorter_wins is not None:
        yield f"  {'shorter one chosen':<22} {told_share(seen.shorter_wins)}"
    if seen.kendall is not None:
        yield f"  {'Kendall, labels':<22} {told(seen.kendall)}"
    if seen.rank is not None:
        yield f"  {'Kendall':<22} {told(seen.rank.kendall)}  against {seen.rank_against}"
        yield f"  {'Spearman':<22} {told(seen.rank.spearman)}"
    if seen.calibration is not None:
        yield f"  {'calibration error':<22} {seen.calibration.ece:.3f}   Brier {seen.calibration.brier:.3f}" + (
            "" if seen.calibration.slope is None else f"   slope {told(seen.calibration.slope)}"
        )


def shift_lines(seen: Measured) -> Iterator[str]:
    if not seen.shifts:
        return
    yield f"\nreward of a changed answer, in standard deviations (intervals hold for all {len(seen.shifts)} together)"
    for shift in seen.shifts:
        bounds = bracketed(shift.low, shift.high, "+.2f")
        judge = "" if shift.judge is None else f"  beyond the judge's {shift.judge:+.2f}"
        mark = "  FAULT" if shift.is_fault else ""
        yield f"  {shift.name:<12} {shift.estimate:+.2f}  {bounds:<16} p {shift.p:.3f}  {shift.what}{judge}{mark}"


def phrase_lines(seen: Measured) -> Iterator[str]:
    if not seen.phrases:
        return
    yield "\nwhat the reward pays for: written into answers that lack it"
    for phrase in sorted(seen.phrases, key=lambda one: -one.shift):
        bounds = bracketed(phrase.low, phrase.high, "+.2f")
        mark = "  FAULT" if phrase.is_fault else ""
        yield f"  {shown(phrase.wording):<28} {phrase.shift:+.2f}  {bounds:<16} in {phrase.count} pairs{mark}"


def data_lines(seen: Measured) -> Iterator[str]:
    if seen.flips is None and seen.coverage is None:
        return
    yield "\npairs"
    if seen.flips is not None:
        yield f"  {'wrong labels':<22} {told(seen.flips.rate, '.1%')}  by what the other pairs say"
    if seen.model_flips is not None:
        yield f"  {'':<22} {told(seen.model_flips.rate, '.1%')}  by the model's margins on held-out pairs"
    covered = seen.coverage
    if covered is not None:
        yield f"  {'near-duplicates':<22} {covered.near_duplicates:.1%}" + (
            "" if covered.leaked is None else f"; of the held-out ones in training {covered.leaked:.1%}"
        )
        low, middle, high = covered.words_chosen
        yield f"  {'words of the chosen':<22} {middle:.0f} ({low:.0f} to {high:.0f} in 90 %)"
        low, middle, high = covered.words_rejected
        yield f"  {'words of the rejected':<22} {middle:.0f} ({low:.0f} to {high:.0f} in 90 %)"
        yield f"  {'spread of prompts':<22} {covered.topics:.0f} directions in {covered.prompts} prompts"
    for suspect in seen.suspects[:SHOWN_SUSPECTS]:
        yield f"  wrong label? {suspect.doubt:.0%}  {suspect.where}"
        yield f"    chosen    {shown(suspect.chosen)}"
        yield f"    rejected  {shown(suspect.rejected)}"


def policy_lines(seen: Measured) -> Iterator[str]:
    if seen.policy is None:
        return
    yield f"\n{seen.policy.samples} answers of the policy"
    if seen.policy.accuracy is not None:
        yield f"  {'agrees with judge':<22} {told_share(seen.policy.accuracy)}"
    if seen.policy.rank is not None:
        yield f"  {'Spearman, judge':<22} {told(seen.policy.rank.spearman)}"
    drift = seen.policy.drift
    if drift is not None:
        yield f"  {'Spearman, KL':<22} {told(drift.spearman)}"
        if drift.excess is not None:
            yield f"  {'overrated per nat':<22} {told(drift.excess, '+.3f')}"
    if seen.distance is not None:
        yield f"  {'beyond the pairs':<22} {told_share(seen.distance.beyond)}  (5 % of the held-out answers are)"


def told(interval: Interval, form: str = "+.3f") -> str:
    return f"{interval.estimate:{form}}  {bracketed(interval.low, interval.high, form)}"


def bracketed(low: float, high: float, form: str) -> str:
    return f"[{low:{form}}, {high:{form}}]" if math.isfinite(low) and math.isfinite(high) else "(no interval)"


def told_share(share: Share) -> str:
    return f"{share.estimate:.1%}  [{share.low:.1%}, {share.high:.1%}]  of {share.count}"


def shown(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= SHOWN_LETTERS else line[: SHOWN_LETTERS - 1] + "…"
