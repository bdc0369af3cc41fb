"""A reward written by the user: any callable that takes the samples and returns one number each.

Named by ``module:function``, ``path/file.py:function`` or an entry point of ``tightrope.rewards``. It receives the
original data row with all its columns (``sample.prompt.row``) and the response's text, never token ids and never a
re-decoded prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tightrope.config.errors import TightropeError
from tightrope.plugins import REWARD, innermost_user_frame, load_plugin
from tightrope.scoring.checked import checked_rewards
from tightrope.types import Sample


class FunctionReward:
    """A RewardSource. ``spec`` names the function in errors."""

    def __init__(self, function: Callable[[list[Sample]], object], spec: str) -> None:
        self._function = function
        self._spec = spec

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Raises TightropeError when the function raises or returns something else than one finite number each."""
        try:
            result = self._function(list(samples))
        except TightropeError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit would end the run without a word
            raise TightropeError(
                f"the reward function {self._spec} raised {type(error).__name__}: {error}",
                where=innermost_user_frame(error),
                fix="it is called with a list of samples: sample.prompt.row, sample.prompt.text, sample.response",
            ) from error
        return checked_rewards(result, samples, f"reward function {self._spec}")


def load_function(spec: str) -> FunctionReward:
    """Raises TightropeError when there is no such module, file, function or entry point, or it is not callable."""
    return FunctionReward(load_plugin(spec, REWARD), spec)
