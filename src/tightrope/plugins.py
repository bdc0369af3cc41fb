"""How does a word in a config become somebody's code? ``module:function``, ``path/file.py:function``, or the name of an
entry point that an installed package offers.

    load_plugin("rewards.py:brevity", REWARD)    # a file beside the config
    load_plugin("brevity", REWARD)               # [project.entry-points."tightrope.rewards"] brevity = "pkg:brevity"

Nothing is looked up before it is named, so that a broken package nobody uses breaks nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from tightrope.config.errors import TightropeError

NOT_USER_CODE = (
    str(Path(__file__).parent),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    "<frozen",
)


@dataclass(frozen=True)
class PluginKind:
    """What is looked for: its name in sentences, the key it stands under, and its group of entry points."""

    noun: str
    key: str
    group: str

    @property
    def form(self) -> str:
        return f"module:function, path/file.py:function or an entry point of {self.group}"


REWARD = PluginKind("reward function", "reward.function", "tightrope.rewards")
DETECTOR = PluginKind("detector", "guardian.detectors", "tightrope.detectors")
TRACKER = PluginKind("tracker", "trackers", "tightrope.trackers")
ALGORITHM = PluginKind("algorithm", "stage", "tightrope.algorithms")


def load_plugin(spec: str, kind: PluginKind) -> Callable[..., Any]:
    """Raises TightropeError, naming the plugin, when there is no such module, file, name or entry point, when it
    cannot be imported, or when it is not callable."""
    found = load_attribute(spec, kind) if ":" in spec else load_entry_point(spec, kind)
    if not callable(found):
        raise TightropeError(
            f"{spec} is not a function", where=kind.key, expected="a callable", found=type(found).__name__
        )
    return found


def offered(kind: PluginKind) -> list[EntryPoint]:
    """The entry points of a group, by name; nothing of theirs is imported."""
    return sorted(entry_points(group=kind.group), key=lambda point: point.name)


def load_entry_point(name: str, kind: PluginKind) -> object:
    points = offered(kind)
    for point in points:
        if point.name == name:
            package = "" if point.dist is None else f" of {point.dist.name}"
            with told_as_import_error(f"{name}{package}", kind):
                return point.load()
    raise TightropeError(
        f"there is no {kind.noun} {name!r}",
        where=kind.key,
        expected=kind.form,
        found=", ".join(point.name for point in points) or "no such entry point",
    )


def load_attribute(spec: str, kind: PluginKind) -> object:
    source, separator, name = spec.rpartition(":")
    if not (separator and source and name):
        raise TightropeError(f"not a {kind.noun}", where=kind.key, expected=kind.form, found=repr(spec))
    module = load_file(Path(source), spec, kind) if source.endswith(".py") else import_module(source, spec, kind)
    functions = vars(module)
    if name not in functions:
        raise TightropeError(
            f"there is no {name!r} in {source}",
            where=kind.key,
            found=", ".join(sorted(n for n, f in functions.items() if callable(f) and not n.startswith("_"))) or None,
            fix="name one of its functions",
        )
    return functions[name]


def import_module(name: str, spec: str, kind: PluginKind) -> ModuleType:
    """Modules of the working directory are found too, after all installed ones."""
    with searched_last(Path.cwd()), told_as_import_error(spec, kind):
        return importlib.import_module(name)


def load_file(path: Path, spec: str, kind: PluginKind) -> ModuleType:
    """The file under a name of its own, so that it replaces no module of the same name."""
    if not path.is_file():
        raise TightropeError("no such file", where=kind.key, found=str(path), fix=f"paths start from {Path.cwd()}")
    path = path.resolve()
    name = "tightrope_plugin_" + hashlib.sha256(str(path).encode()).hexdigest()[:16]
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up while the file runs
    try:
        with searched_last(path.parent), told_as_import_error(spec, kind):
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
def told_as_import_error(spec: str, kind: PluginKind) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # a script without `if __name__ == "__main__"` may end with sys.exit
        raise TightropeError(
            f"the {kind.noun} {spec} cannot be imported",
            where=innermost_user_frame(error),
            found=f"{type(error).__name__}: {error}",
            fix=f"check {kind.key}, and that what it imports is installed",
        ) from error


def innermost_user_frame(error: BaseException) -> str | None:
    """``file:line`` of the last frame in the user's own code; None when none of it was reached."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(NOT_USER_CODE)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None
