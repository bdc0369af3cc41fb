"""Someone typed an option of a run as a flag, as other tools want it: ``tightrope ppo run.yaml --init_kl_coef 0.1``."""

from __future__ import annotations

from collections.abc import Sequence

from tightrope.algorithms.options import CONFIGS
from tightrope.config.errors import TightropeError
from tightrope.config.other_tools import no_counterpart
from tightrope.config.suggestions import all_paths, key_tree, suggest


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
