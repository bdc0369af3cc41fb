"""``tightrope eval``: what several judges say about a model's answers, with intervals, alone or against another."""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tightrope.cli.arguments import Json, Seed, Temperature, new_tokens_of
from tightrope.cli.flags import require_numbers, require_writable, told_in_flags
from tightrope.storage.samples import printable

if TYPE_CHECKING:
    from tightrope.assemble.evaluation import Answers
    from tightrope.maths.diagnostics import Interval

SHOWN_LETTERS = 160
USUAL_NEW_TOKENS = 64


def evaluate(
    model: Path,
    prompts: Path,
    /,
    *,
    judge: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="A reward-model folder, module:function or file.py:function; again for several judges.",
        ),
    ] = (),
    against: Annotated[Path | None, Parameter(help="Another model: same prompts, same random numbers.")] = None,
    reference: Annotated[Path | None, Parameter(help="Measure the KL to this model, in nats per answer.")] = None,
    samples: Annotated[int, Parameter(help="Answers to each prompt.")] = 1,
    temperature: Temperature = 1.0,
    max_new_tokens: Annotated[
        int | None, Parameter(help="Longer answers are cut. Absent: 64, or half the context if that is less.")
    ] = None,
    limit: Annotated[int | None, Parameter(help="Use only the first prompts.")] = None,
    seed: Seed = 0,
    output: Annotated[Path | None, Parameter(help="Write each answer with its numbers here, as JSONL.")] = None,
    json: Json = False,
) -> None:
    """Measure a model: each judge's mean with its 95 % interval, and against another model the paired difference.

    Length, share of stopped answers, entropy and distinct-3 are measured without asking. Several answers to one prompt
    are no independent evidence: intervals are over prompts.

    Parameters
    ----------
    model
        Model folder or run.
    prompts
        JSONL, CSV or parquet with a column `prompt` or `messages`.
    """
    above_zero = {"--samples": samples, "--max-new-tokens": max_new_tokens, "--limit": limit}
    require_numbers(above_zero, temperature, seed)
    if output is not None:
        require_writable(output, "--output")
    from tightrope.assemble import evaluation
    from tightrope.models.load import context_length, resolve_model_folder

    folders = [resolve_model_folder(name) for name in (model, against) if name is not None]
    new_tokens = new_tokens_of(max_new_tokens, USUAL_NEW_TOKENS, min(context_length(folder) for folder in folders))
    asking = evaluation.Asking(prompts, new_tokens, samples, temperature, limit, seed)
    judges = [evaluation.read_judge(spec) for spec in judge]
    start = None if reference is None else resolve_model_folder(reference)
    with told_in_flags():
        found = evaluation.evaluate(folders, asking, judges, start)
    names = [str(name) for name in (model, against) if name is not None]
    if output is not None:
        write_rows(output, names, found)
    count = found[0].rollout
    print(f"{count.n_sequences} answers to {len(count.prompts)} prompts; 95 % intervals over prompts")
    print_numbers(names, found)
    print_examples(found[0], judge[0].removeprefix(evaluation.RM) if judge else None)
    if json:
        print(json_format.dumps(summary(names, found), sort_keys=True))


def print_numbers(names: Sequence[str], found: Sequence[Answers]) -> None:
    from tightrope.assemble.evaluation import compared, mean, verdict

    for name in found[0].numbers:
        print(f"\n{name}")
        for model, answers in zip(names, found, strict=True):
            print(f"  {model:<30} {told(mean(answers, name))}")
        if len(found) == 2:
            against = compared(found[0], found[1], name)
            print(f"  {'difference':<30} {told(against.difference, '+')}")
            print(f"  {'win rate (a tie is half)':<30} {told(against.wins)}")
            print(f"  {names[0]} is {verdict(against)}")
    print("\ndistinct-3")
    for model, answers in zip(names, found, strict=True):
        share = answers.distinct_3
        print(f"  {model:<30} {'no answer has three words' if share is None else f'{share:.3f}'}")


def told(interval: Interval, sign: str = "") -> str:
    if math.isinf(interval.low):
        return f"{interval.estimate:{sign}.3f}  (one prompt: no interval)"
    return f"{interval.estimate:{sign}.3f}  [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def print_examples(answers: Answers, judge: str | None) -> None:
    """The answers that the first judge likes best and least."""
    if judge is None:
        return
    scores, rollout = answers.numbers[judge], answers.rollout
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    samples = rollout.samples()
    for title, index in (("best", order[-1]), ("worst", order[0])):
        prompt, response = (one_line(text) for text in (samples[index].prompt.text, samples[index].response))
        print(f"\n{title} by {judge}: {scores[index]:+.3f}\n  prompt  {prompt}\n  answer  {response}")


def one_line(text: str) -> str:
    shown = printable(" ".join(text.split()))
    return shown if len(shown) <= SHOWN_LETTERS else shown[: SHOWN_LETTERS - 1] + "…"


def write_rows(path: Path, names: Sequence[str], found: Sequence[Answers]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for model, answers in zip(names, found, strict=True):
            for index, sample in enumerate(answers.rollout.samples()):
                row = {
                    "model": model,
                    "prompt": sample.prompt.text,
                    "response": sample.response,
                    "finish_reason": sample.finish_reason,
                    "numbers": {name: values[index] for name, values in answers.numbers.items()},
                }
                file.write(json_format.dumps(row) + "\n")


def summary(names: Sequence[str], found: Sequence[Answers]) -> dict[str, object]:
    from tightrope.assemble.evaluation import compared, mean, verdict

    result: dict[str, object] = {
        "models": list(names),
        "prompts": len(found[0].rollout.prompts),
        "answers": found[0].rollout.n_sequences,
        "distinct_3": [answers.distinct_3 for answers in found],
        "means": [{name: bounds(mean(answers, name)) for name in answers.numbers} for answers in found],
    }
    if len(found) == 2:
        pairs = {name: compared(found[0], found[1], name) for name in found[0].numbers}
        result["against"] = {
            name: {
                "difference": bounds(pair.difference),
                "win_rate": bounds(pair.wins),
                "verdict": verdict(pair).split(":")[0],
            }
            for name, pair in pairs.items()
        }
    return result


def bounds(interval: Interval) -> list[float | None]:
    """Estimate, low, high; null for a bound that does not exist."""
    return [value if math.isfinite(value) else None for value in interval]
