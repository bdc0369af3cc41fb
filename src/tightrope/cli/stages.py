"""The commands that train: ``sft``, ``ppo``, ``rloo``, ``dpo``, and ``resume``; ``rm train`` is in ``rm.py``.

A wrong config is told before torch is imported.
"""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tightrope.algorithms.options import warnings_of
from tightrope.algorithms.plugins import config_class_of
from tightrope.cli.arguments import Json, Overrides, Profile, Quiet
from tightrope.config.load import load_config, named_stage
from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.config.sources import read_source

if TYPE_CHECKING:
    from tightrope.assemble.stage import DisplayFor, Finished
    from tightrope.protocols import Display

EXIT_CODES = {"finished": 0, "interrupted": 75, "stopped": 76, "paused": 77}  # 75: EX_TEMPFAIL, "resume me"


def sft(config: Path, /, *overrides: Overrides, quiet: Quiet = False, json: Json = False) -> None:
    """Supervised fine-tuning on demonstrations."""
    train("sft", config, overrides, quiet, json)


def dpo(config: Path, /, *overrides: Overrides, quiet: Quiet = False, json: Json = False) -> None:
    """Direct preference optimisation on preference pairs."""
    train("dpo", config, overrides, quiet, json)


def ppo(
    config: Path, /, *overrides: Overrides, quiet: Quiet = False, json: Json = False, profile: Profile = False
) -> None:
    """Proximal policy optimisation against a reward model or a reward function."""
    train("ppo", config, overrides, quiet, json, profile=profile)


def rloo(
    config: Path, /, *overrides: Overrides, quiet: Quiet = False, json: Json = False, profile: Profile = False
) -> None:
    """REINFORCE with a leave-one-out baseline, against a reward model or a reward function."""
    train("rloo", config, overrides, quiet, json, profile=profile)


def resume(run: Path, /, *, quiet: Quiet = False, json: Json = False) -> None:
    """Go on with a run that was interrupted, bit for bit.

    Parameters
    ----------
    run
        Folder of the run.
    """
    from tightrope.assemble.stage import resume as resume_stage
    from tightrope.scoring.sources import RewardSourceFailed

    try:
        done = resume_stage(run, shown(quiet))
    except RewardSourceFailed as error:
        print(f"still paused: {error}", file=sys.stderr)
        print(f"nothing was changed; when the source is back: tightrope resume {run}", file=sys.stderr)
        raise SystemExit(EXIT_CODES["paused"]) from error
    finish(done, json)


def train_any(config: Path, /, *overrides: Overrides, quiet: Quiet = False, json: Json = False) -> None:
    """Run the stage that the config names under `stage:`, a plugin's algorithm too.

    Parameters
    ----------
    config
        YAML file.
    """
    named = named_stage(read_source(config, overrides))
    train(config_class_of(named, str(config)).stage, config, overrides, quiet, json)


def train(
    stage: str, path: Path, overrides: tuple[str, ...], quiet: bool, as_json: bool, *, profile: bool = False
) -> None:
    config = load_config(path, overrides, config_class_of(stage, str(path)))
    from tightrope.assemble.stage import start

    finish(start(stage, config, shown(quiet, warnings_of(config)), profile=profile), as_json)


def shown(quiet: bool, warnings: Sequence[str] = ()) -> DisplayFor:
    """The warnings come when the inputs are proven: a mistake stays the one line that is read."""
    from tightrope.cli.display import display_for

    def display(stage: str, config: RunConfig) -> Display:
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        digest = config.samples.digest_every if isinstance(config, OnlineConfig) else 0
        return display_for(stage, config.training.steps, quiet, digest)

    return display


def finish(done: Finished, as_json: bool) -> None:
    """Say how it ended and what to do next; the exit code says it to scripts."""
    resume_command = f"tightrope resume {done.folder}"
    if done.outcome == "interrupted":
        print(
            f"interrupted after step {done.steps}, everything is saved; go on with: {resume_command}", file=sys.stderr
        )
    elif done.outcome == "paused":
        print(f"paused after step {done.steps}: {done.stop_reason}", file=sys.stderr)
        print(f"everything is saved; when the source is back: {resume_command}", file=sys.stderr)
    elif done.outcome == "stopped":
        print(f"stopped by the guardian after step {done.steps}: {done.stop_reason}", file=sys.stderr)
        print(f"the last checkpoint is in {done.folder}/checkpoints; go on with: {resume_command}", file=sys.stderr)
    else:
        print(f"{done.stage} finished after {done.steps} steps in {done.seconds:.0f} s: {done.export}")
        if done.stage == "rm" and done.export is not None:
            print_accuracy(done.export)
        print(f"next: {next_command(done)}")
    if as_json:
        print(json_format.dumps(summary(done), sort_keys=True))
    if EXIT_CODES[done.outcome]:
        raise SystemExit(EXIT_CODES[done.outcome])


def print_accuracy(export: Path) -> None:
    """How far a reward model can be trusted, and how far that number can."""
    from tightrope.models.manifest import read_manifest

    manifest = read_manifest(export)
    if manifest is None or manifest.accuracy is None or manifest.accuracy_interval is None:
        return
    low, high = manifest.accuracy_interval
    print(
        f"{manifest.accuracy:.1%} of {manifest.held_out_pairs} held-out pairs in the right order "
        f"(95 % interval {low:.1%} to {high:.1%})"
    )


def next_command(done: Finished) -> str:
    follow = {
        "sft": f"tightrope generate {done.folder} PROMPTS.jsonl --output answers.jsonl",
        "rm": f"tightrope ppo CONFIG.yaml reward.model={done.folder}",
    }
    return follow.get(done.stage, f"tightrope samples {done.folder}")


def summary(done: Finished) -> dict[str, object]:
    return {
        "stage": done.stage,
        "run": str(done.folder),
        "outcome": done.outcome,
        "steps": done.steps,
        "export": None if done.export is None else str(done.export),
        "seconds": done.seconds,
        "metrics": {name: dict(record.metrics) for name, record in done.latest.items()},
    }
