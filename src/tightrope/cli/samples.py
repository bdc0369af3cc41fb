"""``tightrope samples RUN``: what the policy wrote at a step, beside the reference's own responses."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tightrope.config.errors import TightropeError
from tightrope.storage.run_folder import RunFolder
from tightrope.storage.samples import SampleStore, StoredSample, printable

Split = Literal["probe", "train"]
Order = Literal["random", "reward", "kl", "length", "stored"]


def samples(
    run: Path,
    /,
    *,
    step: Annotated[int | None, Parameter(help="Step to show. Absent: the newest one.")] = None,
    split: Annotated[Split | None, Parameter(help="Training or held-out prompts. Absent: what the step has.")] = None,
    count: Annotated[int, Parameter(help="How many to show.")] = 5,
    sort: Annotated[Order, Parameter(help="Highest first; random is the same at each call.")] = "random",
) -> None:
    """Print responses of a step with their rewards, beside the reference's response where one is stored.

    Parameters
    ----------
    run
        Folder of a run, also while it is running.
    """
    folder = RunFolder.read(run)
    if not folder.database.exists():
        raise TightropeError("this run holds no samples", where=str(run), fix="let it finish a step first")
    store = SampleStore(folder.database, read_only=True)
    try:
        found_split, found_step = choose(store, str(run), step, split)
        chosen = arrange(store.read(found_step, found_split), sort)[: max(count, 0)]
    finally:
        store.close()
    title = f"step {found_step}, {found_split} prompts"
    if sys.stdout.isatty():
        print_table(chosen, title)
    else:
        print_plain(chosen, title)


def choose(store: SampleStore, run: str, step: int | None, split: Split | None) -> tuple[str, int]:
    """The split and step to show. Raises TightropeError naming the nearest steps when there is nothing."""
    splits: Sequence[str] = ("probe", "train") if split is None else (split,)
    steps = {name: store.steps(name) for name in splits}
    newest = [(stored[-1], name) for name, stored in steps.items() if stored]
    if not newest:
        raise TightropeError("this run holds no samples yet", where=run, fix="let it finish a step first")
    if step is None:
        last, name = max(newest)
        return name, last
    for name, stored in steps.items():
        if step in stored:
            return name, step
    near = sorted({number for stored in steps.values() for number in stored}, key=lambda number: abs(number - step))
    raise TightropeError(
        f"no samples of step {step} are stored", where=run, expected=", ".join(map(str, sorted(near[:6])))
    )


def arrange(found: Sequence[StoredSample], order: Order) -> list[StoredSample]:
    """Highest first; what has no number comes last."""
    if order == "random":
        return random.Random(0).sample(found, len(found))
    if order == "stored":
        return list(found)
    return sorted(found, key=lambda sample: sort_key(sample, order))


def sort_key(sample: StoredSample, order: Order) -> tuple[bool, float]:
    value = {"reward": sample.reward, "kl": sample.kl, "length": float(sample.n_tokens)}[order]
    return value is None, -(value or 0.0)


def numbers_of(sample: StoredSample) -> str:
    numbers = [] if sample.reward is None else [f"reward {sample.reward:+.3f}"]
    numbers += [f"{printable(name)} {value:+.3f}" for name, value in sample.parts.items()]
    numbers += [] if sample.kl is None else [f"KL {sample.kl:.2f} nats"]
    return "  ".join([*numbers, f"{sample.n_tokens} tokens", f"ended by {sample.finish_reason}"])


def print_plain(chosen: Sequence[StoredSample], title: str) -> None:
    print(title)
    for sample in chosen:
        print(f"\n{numbers_of(sample)}")
        print(f"prompt     {printable(sample.prompt)}")
        if sample.reference is not None:
            print(f"reference  {printable(sample.reference)}")
        print(f"policy     {printable(sample.response)}")


def print_table(chosen: Sequence[StoredSample], title: str) -> None:
    """``Text`` and not markup: what a model writes in brackets is no style."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    with_reference = any(sample.reference is not None for sample in chosen)
    table = Table(
        "prompt", *(["reference"] if with_reference else []), "policy", "numbers", title=title, show_lines=True
    )
    for sample in chosen:
        reference = [Text(printable(sample.reference or ""))] if with_reference else []
        table.add_row(
            Text(printable(sample.prompt)),
            *reference,
            Text(printable(sample.response)),
            Text(numbers_of(sample).replace("  ", "\n")),
        )
    Console().print(table)
