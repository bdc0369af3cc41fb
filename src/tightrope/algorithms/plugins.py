"""An algorithm somebody else wrote: what its package offers under the entry points ``tightrope.algorithms``.

    MINE = AlgorithmPlugin(MyConfig, update=lambda config: config.mine, make=lambda config, beta: Mine(beta))

    [project.entry-points."tightrope.algorithms"]
    mine = "my_package:MINE"

The entry point's name is the stage's: ``stage: mine`` in a file, `tightrope train FILE`, `tightrope check mine FILE`.
``STAGES`` knows these names without importing anything; a config class is loaded when it is asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tightrope.algorithms.options import CONFIGS, UpdateOptions
from tightrope.config.errors import TightropeError
from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.plugins import ALGORITHM, load_entry_point, offered

if TYPE_CHECKING:
    from tightrope.protocols import Algorithm


@dataclass(frozen=True)
class AlgorithmPlugin:
    """``config`` has the options, ``update`` names the section with epochs and minibatches in it; ``make`` is given the
    config and a function that tells beta. ``critic``: values are estimated, and their head trained."""

    config: type[OnlineConfig]
    update: Callable[[Any], UpdateOptions]
    make: Callable[[Any, Callable[[], float]], Algorithm]
    critic: Literal["shared", "separate"] | None = None


def plugin_of(stage: str) -> AlgorithmPlugin:
    """Raises TightropeError, naming the plugin, when it cannot be imported or is something else."""
    found = load_entry_point(stage, ALGORITHM)
    if not isinstance(found, AlgorithmPlugin):
        raise TightropeError(
            f"the algorithm {stage} is no AlgorithmPlugin", where=ALGORITHM.key, found=type(found).__name__
        )
    if found.config.stage != stage:
        raise TightropeError(
            f"the algorithm {stage} has the config of another stage", where=ALGORITHM.key, found=found.config.stage
        )
    return found


class Stages(Mapping[str, type[RunConfig]]):
    """The config class of every stage, those of plugins too. A built-in stage cannot be replaced."""

    def __getitem__(self, stage: str) -> type[RunConfig]:
        return CONFIGS[stage] if stage in CONFIGS else plugin_of(stage).config

    def __contains__(self, stage: object) -> bool:
        return stage in CONFIGS or any(point.name == stage for point in offered(ALGORITHM))

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*CONFIGS, *(point.name for point in offered(ALGORITHM))])

    def __len__(self) -> int:
        return len(list(iter(self)))


STAGES = Stages()


def config_class_of(stage: object, where: str) -> type[RunConfig]:
    """Raises TightropeError for a word that is no stage."""
    if isinstance(stage, str) and stage in STAGES:
        return STAGES[stage]
    if stage is None:
        fix = f"add `stage: {' | '.join(STAGES)}`"
        raise TightropeError("for which stage is this file?", where=where, fix=fix)
    near = difflib.get_close_matches(str(stage), STAGES, n=1)
    raise TightropeError(
        "no known stage",
        where=where,
        expected=" | ".join(STAGES),
        found=str(stage),
        fix=f'Did you mean "{near[0]}"?' if near else None,
    )
