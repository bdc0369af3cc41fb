"""What came of the demo? The end card: five models side by side, by two judges, with how sure each number is.

A model is judged on one response to each held-out prompt, the same prompts in the same order for all, so that
differences are paired. Shares have Wilson's interval, means and differences a normal one, all at 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tightrope.maths.diagnostics import Interval, paired_difference, wilson_interval

if TYPE_CHECKING:
    from rich.table import Table

    from tightrope.demo.forgetting import Forgetting

DISTINCT_3_FLOOR = 0.8
LENGTH_FLOOR = 0.6
"""Of the SFT model's mean length."""

COLUMNS = ("model", "gold: positive", "independent", "KL nats", "tokens", "distinct-3", "seconds")
NARROW_HEADERS = {"gold: positive": "gold:\npositive", "KL nats": "KL\nnats", "distinct-3": "distinct\n3-grams"}
HONEST = (
    "A model this small writes poor English; watch the direction, not the prose.",
    "The preferences are synthetic: of four samples the two that a classifier tells apart best, and its vote on them.",
    "No person was asked; the gold judge is that classifier.",
    "Nothing was trained on the independent judge.",
)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One model on the held-out prompts. ``kl`` (to the SFT model, nats a response) is None where there is none.

    ``gold`` probability of positive and ``independent`` score of each response, ``lengths`` in tokens.
    """

    name: str
    gold: Sequence[float]
    independent: Sequence[float]
    lengths: Sequence[int]
    distinct_3: float | None
    kl: float | None

    @property
    def positive(self) -> Interval:
        """Share of responses the gold judge holds for positive."""
        return wilson_interval(sum(probability > 0.5 for probability in self.gold), len(self.gold))

    @property
    def sentiment(self) -> Interval:
        """Mean of the independent judge."""
        return paired_difference([0.0] * len(self.independent), list(self.independent))

    @property
    def mean_length(self) -> float:
        return sum(self.lengths) / len(self.lengths)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything the card tells. ``n`` is of best-of-n; ``rm_accuracy`` on held-out synthetic pairs; ``dpo`` and
    ``forgetting`` None where they were not part of it; ``honest``: what to keep in mind.

    ``stage_seconds`` by stage (``sft``, ``rm``, ``dpo``, ``ppo``, and whatever else took time).
    """

    base: Evaluated
    sft: Evaluated
    best_of_n: Evaluated
    dpo: Evaluated | None
    ppo: Evaluated
    n: int
    pairs: int
    rm_accuracy: Interval
    seed: int
    seconds: float
    peak_rss_bytes: int
    next_commands: Sequence[str]
    stage_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    forgetting: Forgetting | None = None
    honest: Sequence[str] = HONEST

    @property
    def rows(self) -> list[tuple[Evaluated, float | None]]:
        """Each model with the seconds of the stage that made it; None where nothing was trained."""
        made_by = ((self.base, "base"), (self.sft, "sft"), (self.best_of_n, "rm"), (self.dpo, "dpo"), (self.ppo, "ppo"))
        return [(model, self.stage_seconds.get(stage)) for model, stage in made_by if model is not None]

    @property
    def gold_rise(self) -> Interval:
        """PPO minus SFT, share of positive responses, paired by prompt."""
        before, after = ([float(probability > 0.5) for probability in model.gold] for model in (self.sft, self.ppo))
        return paired_difference(before, after)

    @property
    def independent_rise(self) -> Interval:
        """PPO minus SFT, mean score, paired by prompt."""
        return paired_difference(list(self.sft.independent), list(self.ppo.independent))


def card_table(result: DemoResult, *, narrow: bool = False) -> Table:
    """``narrow`` fits 80 columns: intervals stand below their numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title(result), title_justify="left")
    if narrow:
        table.box, table.show_edge, table.pad_edge = box.SIMPLE_HEAD, False, False
    for column in COLUMNS:
        header = NARROW_HEADERS.get(column, column) if narrow else column
        table.add_column(header, justify="left" if column == "model" else "right", no_wrap=True)
    for model, seconds in result.rows:
        row = cells(model, seconds)
        table.add_row(*(text.replace(" (", "\n(") for text in row) if narrow else row)
    return table


def card_text(result: DemoResult) -> str:
    """The same card for a log: aligned columns, no colour, no boxes."""
    lines = [COLUMNS, *(cells(model, seconds) for model, seconds in result.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    aligned = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    return "\n".join([title(result), "", *aligned, "", *card_notes(result)])


def card_notes(result: DemoResult) -> list[str]:
    """What stands below the table: the difference, warnings, honest words, and what to try next."""
    gold, independent, accuracy = result.gold_rise, result.independent_rise, result.rm_accuracy
    return [
        f"PPO - SFT: independent {signed(independent)}, gold {signed(gold)} (95 % intervals, paired by prompt)",
        f"Reward model: {accuracy.estimate:.1%} of held-out synthetic pairs right"
        f" ({accuracy.low:.1%} to {accuracy.high:.1%}); its labels are noisy votes, so 100 % is out of reach",
        *forgetting_notes(result),
        *warnings(result),
        *result.honest,
        "Next:",
        *(f"  {command}" for command in result.next_commands),
    ]


def forgetting_notes(result: DemoResult) -> list[str]:
    if result.forgetting is None:
        return []
    before, after = result.forgetting.before, result.forgetting.after
    return [
        f"Forgetting: perplexity of plain English {before.perplexity:.1f} to {after.perplexity:.1f}"
        f" (x {result.forgetting.perplexity_ratio:.3f}), facts right {before.facts:.0%} to {after.facts:.0%}"
    ]


def warnings(result: DemoResult) -> list[str]:
    """Signs that the reward was won by writing less or the same again."""
    found: list[str] = []
    if result.ppo.distinct_3 is not None and result.ppo.distinct_3 < DISTINCT_3_FLOOR:
        found.append(f"Warning: PPO repeats itself (distinct-3 {result.ppo.distinct_3:.2f}, floor {DISTINCT_3_FLOOR})")
    if result.ppo.mean_length < LENGTH_FLOOR * result.sft.mean_length:
        found.append(
            f"Warning: PPO's responses shrank to {result.ppo.mean_length / result.sft.mean_length:.0%}"
            f" of the SFT model's length (floor {LENGTH_FLOOR:.0%})"
        )
    return found


def card_json(result: DemoResult) -> dict[str, Any]:
    """The card as plain JSON values: "before" is the SFT model, "after" is PPO."""
    before, after, rise = result.sft, result.ppo, result.independent_rise
    return {
        "gold_positive_before": before.positive.estimate,
        "gold_positive_after": after.positive.estimate,
        "gold_interval": [result.gold_rise.low, result.gold_rise.high],
        "independent_before": before.sentiment.estimate,
        "independent_after": after.sentiment.estimate,
        "independent_interval": [rise.low, rise.high],
        "kl_seq": after.kl,
        "rm_heldout_accuracy": result.rm_accuracy.estimate,
        "rm_heldout_interval": [result.rm_accuracy.low, result.rm_accuracy.high],
        "response_length_before": before.mean_length,
        "response_length_after": after.mean_length,
        "distinct_3_before": before.distinct_3,
        "distinct_3_after": after.distinct_3,
        "dpo_gold_positive_after": None if result.dpo is None else result.dpo.positive.estimate,
        "dpo_independent_after": None if result.dpo is None else result.dpo.sentiment.estimate,
        "dpo_kl_seq": None if result.dpo is None else result.dpo.kl,
        "best_of_n": result.n,
        "best_of_n_gold_positive": result.best_of_n.positive.estimate,
        "best_of_n_independent": result.best_of_n.sentiment.estimate,
        "held_out_prompts": len(before.gold),
        "synthetic_pairs": result.pairs,
        "seed": result.seed,
        "seconds": result.seconds,
        "stage_seconds": dict(result.stage_seconds),
        "peak_rss_bytes": result.peak_rss_bytes,
        **forgetting_json(result),
    }


def forgetting_json(result: DemoResult) -> dict[str, float]:
    if result.forgetting is None:
        return {}
    return {
        "forgetting_ppl_ratio": result.forgetting.perplexity_ratio,
        "facts_before": result.forgetting.before.facts,
        "facts_after": result.forgetting.after.facts,
    }


def title(result: DemoResult) -> str:
    return (
        f"Steered towards positive reviews: {len(result.sft.gold)} held-out prompts, {result.pairs} synthetic pairs,"
        f" seed {result.seed}, {result.seconds:.0f} s"
    )


def cells(model: Evaluated, seconds: float | None) -> tuple[str, ...]:
    positive, sentiment = model.positive, model.sentiment
    return (
        model.name,
        f"{positive.estimate:.0%} ({positive.low:.0%} to {positive.high:.0%})",
        f"{sentiment.estimate:+.2f} ({sentiment.low:+.2f} to {sentiment.high:+.2f})",
        "-" if model.kl is None else f"{model.kl:.1f}",
        f"{model.mean_length:.1f}",
        "-" if model.distinct_3 is None else f"{model.distinct_3:.2f}",
        "-" if seconds is None else f"{seconds:.0f}",
    )


def signed(interval: Interval) -> str:
    """An estimate and its interval, with signs.

    >>> signed(Interval(0.5, 0.4, 0.6))
    '+0.50 (+0.40 to +0.60)'
    """
    return f"{interval.estimate:+.2f} ({interval.low:+.2f} to {interval.high:+.2f})"
