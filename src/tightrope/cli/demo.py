"""``tightrope demo``: a small language model learns from preferences while you watch."""

from __future__ import annotations

import io
import json as json_format
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from tightrope.cli.stages import EXIT_CODES
from tightrope.config.errors import TightropeError
from tightrope.config.schema import RunConfig

if TYPE_CHECKING:
    from tightrope.demo.recipe import Recipe
    from tightrope.protocols import Display

MARK = "demo.json"  # a folder with it is a demo's own, and may be replaced

WIDE = 100
"""Columns of the terminal from which the card has each number beside its interval."""


Size = Literal["small", "standard"]


def demo(
    *,
    size: Annotated[
        Size,
        Parameter(help="small: a model from scratch, minutes. standard: SmolLM2-135M with LoRA, about 20 minutes."),
    ] = "small",
    output: Annotated[Path, Parameter(help="Where everything is kept. An earlier demo there is replaced.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, Parameter(help="Keys every random number.")] = 0,
    quiet: Annotated[bool, Parameter(negative=(), help="Show nothing but the card.")] = False,
    json: Annotated[bool, Parameter(negative=(), help="Print the card as one JSON object on the last line.")] = False,
) -> None:
    """Watch a small language model learn from preferences, in minutes.

    A small model learns to write like movie reviews, a reward model learns which reviews a judge likes, and PPO steers
    the model towards them. Real text, and judges that nobody trained on.
    """
    from tightrope.cli.display import display_for
    from tightrope.demo.card import card_json
    from tightrope.demo.recipe import Demo, StageEnded

    recipe = recipe_of(size)
    claim(output, seed)

    def display(stage: str, config: RunConfig) -> Display:
        return display_for(stage, config.training.steps, quiet)

    def say(text: str) -> None:
        if not quiet:
            print(f"· {text}", flush=True)

    try:
        result = Demo(recipe, output, seed, display, say).run()
    except StageEnded as ended:
        print(f"the demo ended early: {ended}; run `tightrope demo` again", file=sys.stderr)
        raise SystemExit(EXIT_CODES[ended.done.outcome]) from ended
    card = card_json(result)
    (output / MARK).write_text(json_format.dumps(card, indent=2, sort_keys=True) + "\n")
    show(result, output / "card.svg")
    if json:
        print(json_format.dumps(card, sort_keys=True))


def recipe_of(size: Size) -> Recipe:
    """Raises TightropeError, before anything is written, where a package is missing."""
    if size == "small":
        from tightrope.demo.small import SMALL

        return SMALL
    from tightrope.demo.standard import STANDARD, model_file

    model_file()
    return STANDARD


def claim(output: Path, seed: int) -> None:
    """An empty folder for the demo. Raises TightropeError where it would replace something that is not a demo."""
    if output.exists() and any(output.iterdir()):
        if not (output / MARK).exists():
            raise TightropeError(
                "this folder holds something that is no demo", where=str(output), fix="choose another --output"
            )
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / MARK).write_text(json_format.dumps({"seed": seed}) + "\n")


def show(result: object, picture: Path) -> None:
    """The card on the terminal, or as plain lines elsewhere; and as a picture."""
    from rich.console import Console

    from tightrope.demo.card import DemoResult, card_notes, card_table, card_text

    assert isinstance(result, DemoResult)
    if sys.stdout.isatty():
        console = Console()
        console.print(card_table(result, narrow=console.width < WIDE))
        for note in card_notes(result):  # commands stay in one piece, to be copied
            console.print(note, markup=False, highlight=False, soft_wrap=note.startswith("  "))
    else:
        print(card_text(result))
    paper = Console(record=True, width=120, file=io.StringIO())
    paper.print(card_table(result))
    for note in card_notes(result):
        paper.print(note, markup=False, highlight=False)
    picture.write_text(self_contained(paper.export_svg(title="tightrope demo")))


def self_contained(svg: str) -> str:
    """rich names a font on a web server; this picture fetches nothing and takes the reader's own.

    >>> self_contained('@font-face { src: url("https://x") } .t { font-family: Fira Code, monospace }')
    '.t { font-family: monospace }'
    """
    without_fonts = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"Fira Code,\s*monospace", "monospace", without_fonts)
