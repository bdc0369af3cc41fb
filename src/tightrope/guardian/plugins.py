"""The detectors a config names: somebody's own, beside those that are built in.

A detector only observes. What it finds as ``alarm`` is written to the journal; one that raises is left alone from then
on, with an alarm that says so: a detector may not end the run it watches.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightrope.config.errors import TightropeError
from tightrope.config.schema import GuardianSection
from tightrope.plugins import DETECTOR, load_plugin
from tightrope.records import Detector, Finding, StepRecord


class PluginDetector:
    """Its name is how the config names it, unless the detector gives one that works."""

    def __init__(self, spec: str, detector: Detector) -> None:
        self.name = spec
        self._detector = detector
        self._broken = False

    def review(self, history: Sequence[StepRecord]) -> Sequence[Finding]:
        if self._broken or not history:
            return []
        try:
            found = list(self._detector.review(history))
            strange = [finding for finding in found if not isinstance(finding, Finding)]  # pyright: ignore[reportUnnecessaryIsInstance]
            if strange:
                raise TypeError(f"{strange[0]!r} is no Finding")
            return found
        except (Exception, SystemExit) as error:  # somebody's code, at any step of a long run
            self._broken = True
            message = f"the detector {self.name} raised {type(error).__name__}: {error}; it is left out from here on"
            return [Finding(self.name, "alarm", history[-1].step, message)]


def detectors_of(options: GuardianSection) -> list[PluginDetector]:
    """Raises TightropeError, naming the plugin, for one that cannot be made."""
    return [PluginDetector(spec, made(spec)) for spec in options.detectors]


def made(spec: str) -> Detector:
    factory = load_plugin(spec, DETECTOR)
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise TightropeError(
            f"the detector {spec} cannot be made",
            where=DETECTOR.key,
            found=f"{type(error).__name__}: {error}",
            fix="it is called without arguments and returns an object with `review(history)`",
        ) from error
