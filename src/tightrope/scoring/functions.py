"""A reward written by the user: any callable that takes the samples and returns one number each.

``module:function`` or ``path/file.py:function``. It receives the original data row with all its columns
(``sample.prompt.row``) and the response's text, never token ids and never a re-decoded prompt.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tightrope.config.errors import TightropeError
from tightrope.scoring.checked import checked_rewards
from tightrope.types import Sample

FORM = "module:function or path/file.py:function"
NOT_USER_CODE = (
    str(Path(__file__).parents[1]),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    "<frozen",
)


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
        except Exception as error:
            raise TightropeError(
                f"the reward function {self._spec} raised {type(error).__name__}: {error}",
                where=innermost_user_frame(error),
                fix="it is called with a list of samples: sample.prompt.row, sample.prompt.text, sample.response",
            ) from error
        return checked_rewards(result, samples, f"reward function {self._spec}")


def load_function(spec: str) -> FunctionReward:
    """Raises TightropeError when there is no such module, file or function, or it is not callable."""
    source, separator, name = spec.rpartition(":")
    if not (separator and source and name):
        raise TightropeError("not a reward function", where="reward.function", expected=FORM, found=repr(spec))
    module = load_file(Path(source), spec) if source.endswith(".py") else import_module(source, spec)
    functions = vars(module)
    if name not in functions:
        raise TightropeError(
            f"there is no {name!r} in {source}",
            where="reward.function",
            found=", ".join(sorted(n for n, f in functions.items() if callable(f) and not n.startswith("_"))) or None,
            fix="name one of its functions",
        )
    function = functions[name]
    if not callable(function):
        raise TightropeError(
            f"{spec} is not a function", where="reward.function", expected="a callable", found=type(function).__name__
        )
    return FunctionReward(function, spec)


def import_module(name: str, spec: str) -> ModuleType:
    """Modules of the working directory are found too, after all installed ones."""
    with searched_last(Path.cwd()), told_as_import_error(spec):
        return importlib.import_module(name)


def load_file(path: Path, spec: str) -> ModuleType:
    """The file under a name of its own, so that it replaces no module of the same name."""
    if not path.is_file():
        raise TightropeError(
            "no such file", where="reward.function", found=str(path), fix=f"paths start from {Path.cwd()}"
        )
    path = path.resolve()
    name = "tightrope_reward_" + hashlib.sha256(str(path).encode()).hexdigest()[:16]
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up while the file runs
    try:
        with searched_last(path.parent), told_as_import_error(spec):
            found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def searched_last(folder: Path) -> Iterator[None]:
    """Imports find modules beside the file; the search path is as before afterwards."""
    before = list(sys.path)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def told_as_import_error(spec: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise TightropeError(
            f"the reward function {spec} cannot be imported",
            where=innermost_user_frame(error),
            found=f"{type(error).__name__}: {error}",
            fix="check reward.function, and that what it imports is installed",
        ) from error


def innermost_user_frame(error: Exception) -> str | None:
    """``file:line`` of the last frame in the user's own code; None when none of it was reached."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(NOT_USER_CODE)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None
