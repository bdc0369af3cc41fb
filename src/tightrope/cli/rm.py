"""``tightrope rm train`` and ``tightrope rm score``: make a reward model, and ask it."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tightrope.cli.arguments import Json, Overrides, Quiet
from tightrope.cli.flags import require_writable
from tightrope.cli.stages import train as train_stage
from tightrope.config.errors import TightropeError
from tightrope.data.chat_format import ChatFormat, answer_text
from tightrope.data.readers import Row, read_rows
from tightrope.models.manifest import require_kind

if TYPE_CHECKING:
    from tightrope.types import Sample

ANSWER_COLUMNS = ("completion", "response", "answer")


def train(config: Path, /, *overrides: Overrides, quiet: Quiet = False, json: Json = False) -> None:
    """Train a reward model on preference pairs."""
    train_stage("rm", config, overrides, quiet, json)


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer to score; ``column`` is where it came from."""

    row: Row
    column: str
    sample: Sample


def score(
    model: Path,
    file: Path | None = None,
    /,
    *,
    prompt: Annotated[str | None, Parameter(help="Score one answer to this prompt instead of a file.")] = None,
    response: Annotated[str | None, Parameter(help="The answer to --prompt.")] = None,
    output: Annotated[Path | None, Parameter(help="Write the rows with their scores here. Absent: the screen.")] = None,
) -> None:
    """Score answers with a reward model: pairs, completions, or one prompt and response.

    Parameters
    ----------
    model
        Reward-model folder or run.
    file
        JSONL, CSV or parquet with `prompt` and `completion`, or with `prompt`, `chosen` and `rejected`.
    """
    if output is not None:
        require_writable(output, "--output")
    from tightrope.models.load import load_tokenizer, resolve_model_folder
    from tightrope.models.roles import load_reward
    from tightrope.scoring.reward_model import RewardModel
    from tightrope.types import TOKENS_AT_ONCE

    folder = resolve_model_folder(model)
    require_kind(folder, "reward")
    tokenizer = load_tokenizer(folder)
    asked = list(questions(file, prompt, response, ChatFormat(tokenizer)))
    source = RewardModel(load_reward(folder), tokenizer, TOKENS_AT_ONCE)
    scores = list(source.score([one.sample for one in asked]))
    lines = [
        json_format.dumps({"row": one.row.number, "column": one.column, "score": value})
        for one, value in zip(asked, scores, strict=True)
    ]
    if output is None:
        print("\n".join(lines))
    else:
        output.write_text("\n".join(lines) + "\n")
    print(verdict(asked, scores), file=sys.stderr)


def questions(file: Path | None, prompt: str | None, response: str | None, form: ChatFormat) -> Iterator[Asked]:
    """Raises TightropeError when neither or both ways to ask are used, or a row holds no answer."""
    if (file is None) == (prompt is None) or (prompt is None) != (response is None):
        raise TightropeError("give a file, or --prompt and --response")
    if file is None:
        yield from asked_of(Row("--prompt", 1, {"prompt": prompt, "response": response}), form)
        return
    for row in read_rows(file):
        try:
            yield from asked_of(row, form)
        except TightropeError as error:
            raise TightropeError(
                error.what, where=f"{file}:{row.number}", expected=error.expected, found=error.found, fix=error.fix
            ) from error


def asked_of(row: Row, form: ChatFormat) -> Iterator[Asked]:
    """Both answers of a pair, or the one answer of another row."""
    from tightrope.types import Prompt, Sample

    values = row.values
    if "chosen" in values and "rejected" in values:
        text, ids, chosen, rejected = form.preference(values)
        shared = values if "prompt" in values else {"prompt": values["chosen"][:-1]}
        prompt = Prompt(row.number, ids, text, shared)
        yield Asked(row, "chosen", Sample(prompt, chosen, "stop", 0))
        yield Asked(row, "rejected", Sample(prompt, rejected, "stop", 0))
        return
    column = next((name for name in ANSWER_COLUMNS if name in values), None)
    if column is None:
        raise TightropeError(
            "no answer to score",
            expected="a column `completion`, or `chosen` and `rejected`",
            found=", ".join(values),
        )
    text, ids = form.prompt(values)
    answer = "" if values[column] == "" else answer_text(values, column)  # a policy may end at once
    yield Asked(row, column, Sample(Prompt(row.number, ids, text, values), answer, "stop", 0))


def verdict(asked: Sequence[Asked], scores: Sequence[float]) -> str:
    """How many, and for pairs the accuracy with its interval."""
    from tightrope.maths.diagnostics import wilson_interval

    chosen = [value for one, value in zip(asked, scores, strict=True) if one.column == "chosen"]
    rejected = [value for one, value in zip(asked, scores, strict=True) if one.column == "rejected"]
    if not chosen or len(chosen) != len(rejected):
        return f"{len(scores)} answers scored"
    right = sum(better > worse for better, worse in zip(chosen, rejected, strict=True))
    accuracy = wilson_interval(right, len(chosen))
    return (
        f"{len(chosen)} pairs: {accuracy.estimate:.1%} in the right order "
        f"(95 % interval {accuracy.low:.1%} to {accuracy.high:.1%})"
    )
