"""``tightrope generate``: several answers a prompt from any model, as a file that ``tightrope label`` reads."""

from __future__ import annotations

import shlex
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tightrope.cli.arguments import Seed, Temperature, new_tokens_of
from tightrope.cli.flags import require_numbers, require_writable, told_in_flags
from tightrope.config.errors import TightropeError
from tightrope.config.schema import DataSection
from tightrope.storage.labels import LabelItem, write_items

if TYPE_CHECKING:
    from tightrope.types import Rollout

USUAL_NEW_TOKENS = 64


def generate(
    model: Path,
    prompts: Path,
    /,
    *,
    output: Annotated[Path, Parameter(help="The label file.")],
    samples: Annotated[int, Parameter(help="Answers a prompt.")] = 2,
    max_new_tokens: Annotated[
        int | None, Parameter(help="Longer answers are cut. Absent: 64, or half the model's context if that is less.")
    ] = None,
    temperature: Temperature = 1.0,
    limit: Annotated[int | None, Parameter(help="Use only the first prompts.")] = None,
    seed: Seed = 0,
    force: Annotated[bool, Parameter(negative=(), help="Replace the output file.")] = False,
) -> None:
    """Write several answers a prompt, ready to be ranked with `tightrope label`.

    Parameters
    ----------
    model
        Model folder or run.
    prompts
        JSONL, CSV or parquet with a column `prompt` or `messages`.
    """
    above_zero = {"--samples": samples, "--max-new-tokens": max_new_tokens, "--limit": limit}
    require_numbers(above_zero, temperature, seed)
    if output.exists() and not force:
        raise TightropeError("this file exists", where=str(output), fix="choose another --output, or use --force")
    require_writable(output, "--output")
    from tightrope.data.prompts import load_prompts
    from tightrope.models.load import context_length, eos_ids, load_tokenizer, resolve_model_folder
    from tightrope.models.manifest import require_kind
    from tightrope.models.roles import load_policy
    from tightrope.rollout.local_engine import LocalEngine
    from tightrope.types import TOKENS_AT_ONCE, SampleKey, Sampling

    folder = resolve_model_folder(model)
    require_kind(folder, "policy")
    tokenizer = load_tokenizer(folder)
    new_tokens = new_tokens_of(max_new_tokens, USUAL_NEW_TOKENS, context_length(folder))
    section = DataSection(train=prompts, held_out=0, limit=limit)
    with told_in_flags():
        data = load_prompts(section, tokenizer, context=context_length(folder), new_tokens=new_tokens)
    engine = LocalEngine(load_policy(folder), tokenizer, lambda: 0, TOKENS_AT_ONCE)
    sampling = Sampling(temperature, new_tokens, eos_ids(folder, tokenizer))
    rollout = engine.generate(data.train, samples, sampling, SampleKey(seed, 0, 0))
    items = items_of(rollout, str(model))
    write_items(output, items)
    print(f"{rollout.n_sequences} answers to {len(items)} prompts: {output}")
    print(f"next: tightrope label {shlex.quote(str(output))}")


def items_of(rollout: Rollout, source: str) -> list[LabelItem]:
    """One item a prompt; answers that are equal to the letter are shown once."""
    answers: dict[int, list[str]] = defaultdict(list)
    for prompt, response in zip(rollout.prompt_index.tolist(), rollout.responses, strict=True):
        if response not in answers[prompt]:
            answers[prompt].append(response)
    return [
        LabelItem(
            id=str(rollout.prompts[prompt].index),
            prompt=rollout.prompts[prompt].text,
            responses=tuple(texts),
            messages=tuple(rollout.prompts[prompt].row.get("messages", ())),
            sources=(source,) * len(texts),
        )
        for prompt, texts in answers.items()
    ]
