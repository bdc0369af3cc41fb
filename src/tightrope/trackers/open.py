"""Which trackers does a run have? From its config to guarded trackers; only names are checked, nothing is imported."""

from __future__ import annotations

from pathlib import Path

from tightrope.config.errors import TightropeError
from tightrope.config.schema import RunConfig
from tightrope.plugins import TRACKER, load_plugin, offered
from tightrope.trackers.backends import BUILT_IN, TensorBoard, folder_of
from tightrope.trackers.base import MetricTracker, TrackedRun, TrackerFactory
from tightrope.trackers.guarded import GuardedTracker
from tightrope.trackers.memory import TrackerMemory

REWINDS: frozenset[TrackerFactory] = frozenset([TensorBoard])
"""Trackers that forget the rows beyond a resumed step by themselves."""


def require_known(config: RunConfig) -> None:
    """Raises TightropeError for a word that is no tracker: a slip is told at once. What a known tracker does later,
    even when it cannot be imported, is the tracker's own trouble and not the run's."""
    known = [*BUILT_IN, *(point.name for point in offered(TRACKER))]
    for name in config.trackers:
        if ":" not in name and name not in known:
            raise TightropeError(
                f"there is no tracker {name!r}", where="trackers", expected=f"{', '.join(known)} or {TRACKER.form}"
            )


def trackers_of(config: RunConfig, run_folder: Path, next_step: int) -> list[GuardedTracker]:
    return [guarded(name, config, run_folder, next_step) for name in dict.fromkeys(config.trackers)]


def guarded(name: str, config: RunConfig, run_folder: Path, next_step: int) -> GuardedTracker:
    folder = folder_of(run_folder, name)
    memory = TrackerMemory(folder.with_name(f"{folder.name}.json"))

    def opened() -> MetricTracker:
        folder.mkdir(parents=True, exist_ok=True)
        factory: TrackerFactory = BUILT_IN[name] if name in BUILT_IN else load_plugin(name, TRACKER)
        return factory(
            TrackedRun(
                name=config.tracker_options.run_name or run_folder.resolve().name,
                project=config.tracker_options.project,
                stage=config.stage,
                folder=folder,
                config=config.model_dump(mode="json"),
                next_step=next_step,
                known_id=memory.run_id,
                remember_id=memory.remember_id,
            )
        )

    return GuardedTracker(name, opened, memory, skip_told=BUILT_IN.get(name) not in REWINDS)
