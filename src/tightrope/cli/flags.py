"""Where flags of commands and options of runs meet.

Someone typed an option of a run as a flag, as other tools want it: ``tightrope ppo run.yaml --init_kl_coef 0.1``. And
commands that have flags use what runs use, whose errors name a run's keys: ``told_in_flags`` names the flags instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tightrope.algorithms.options import CONFIGS
from tightrope.config.errors import TightropeError
from tightrope.config.other_tools import no_counterpart
from tightrope.config.schema import LEAST_TEMPERATURE
from tightrope.config.suggestions import all_paths, key_tree, suggest

IN_FLAGS = {
    "rollout.max_new_tokens": "--max-new-tokens",
    "set data.overlong to drop or trim": "shorten it, or lower --max-new-tokens",
}
SEEDS = 2**63


@contextmanager
def told_in_flags() -> Iterator[None]:
    """Errors of parts that runs share say what to change here."""
    try:
        yield
    except TightropeError as error:
        what, fix = (None if text is None else in_flags(text) for text in (error.what, error.fix))
        raise TightropeError(
            what or "", where=error.where, expected=error.expected, found=error.found, fix=fix
        ) from error


def in_flags(text: str) -> str:
    for key, flag in IN_FLAGS.items():
        text = text.replace(key, flag)
    return text


def require_numbers(above_zero: Mapping[str, float | None], temperature: float, seed: int) -> None:
    """Raises TightropeError for a flag whose number makes no sense."""
    for name, value in above_zero.items():
        if value is not None and not value > 0:
            raise TightropeError("must be over 0", where=name, found=str(value))
    if not LEAST_TEMPERATURE <= temperature < math.inf:
        raise TightropeError(f"must be at least {LEAST_TEMPERATURE:g}", where="--temperature", found=str(temperature))
    if not 0 <= seed < SEEDS:
        raise TightropeError(f"must be at least 0 and under {SEEDS}", where="--seed", found=str(seed))


def require_writable(path: Path, flag: str) -> None:
    """Before minutes are spent on what goes there."""
    if not path.parent.is_dir():
        raise TightropeError("no such folder", where=str(path.parent), fix=f"make it, or choose another {flag}")
    new = not path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        fix = f"choose another {flag}"
        raise TightropeError("cannot be written", where=str(path), found=error.strerror, fix=fix) from error
    if new:
        path.unlink()


def option_as_flag(words: Sequence[str]) -> TightropeError | None:
    """What to write instead. None where no flag resembles an option of the command."""
    stage = words[1] if words[0] in ("check", "rm") and words[1:] else words[0]
    config_class = CONFIGS.get("rm" if words[:2] == ["rm", "train"] else stage)
    if config_class is None:
        return None
    for position, word in enumerate(words):
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word[2:].partition("=")
        path = tuple(name.replace("-", "_").split("."))
        meant = name if path in all_paths(key_tree(config_class)) else suggest(path, config_class)
        reason = no_counterpart(path)
        if reason:
            return TightropeError(f"there is no option `--{name}`", fix=f"no counterpart: {reason}")
        if meant is not None:
            following = [word for word in words[position + 1 : position + 2] if not word.startswith("-")]
            value = value if equals else (following or ["..."])[0]
            return TightropeError(
                f"there is no option `--{name}`", fix=f"write options of a run as key=value: {meant}={value}"
            )
    return None
