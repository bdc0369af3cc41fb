"""Gives functions that are already imported, wherever their names went, the code of a changed text of their module.

Nothing is imported again: a function object keeps its place and takes the new code, defaults too; a named number is set
anew in every module that imported it. What else a module holds is its skeleton; where that changes, see ``warm_tests``.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

Names = Mapping[str, Any]


def skeleton(text: str) -> str:
    """The module without the bodies and defaults of its functions and without the values of its constants."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module):
            node.body = [ast.Pass() if is_constant(statement) else statement for statement in node.body]
        if isinstance(node, ast.FunctionDef):
            node.body = []
            node.args.defaults, node.args.kw_defaults = [], []
    return ast.dump(tree)


def is_constant(node: ast.stmt) -> bool:
    """A number with a name: ``LIMIT = 20.0``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    return not any(isinstance(part, ast.Call | ast.Name) for part in ast.walk(node.value))


def change_in_place(module: Names, fresh: Names, original: ast.Module, changed: ast.Module) -> None:
    """Gives the functions and constants of ``module`` the code, defaults and values they have in ``fresh``."""
    for old, new in zip(original.body, changed.body, strict=True):
        if isinstance(old, ast.Assign) and is_constant(old) and isinstance(old.targets[0], ast.Name):
            change_constant(old.targets[0].id, module, fresh)
        elif isinstance(old, ast.FunctionDef) and isinstance(new, ast.FunctionDef):
            change(module[old.name], fresh[old.name], old, new)
        elif isinstance(old, ast.ClassDef) and isinstance(new, ast.ClassDef):
            holder, fresh_holder = vars(module[old.name]), vars(fresh[old.name])
            for old_method, new_method in zip(old.body, new.body, strict=True):
                if isinstance(old_method, ast.FunctionDef) and isinstance(new_method, ast.FunctionDef):
                    change(holder[old_method.name], fresh_holder[old_method.name], old_method, new_method)


def change_constant(name: str, old: Names, new: Names) -> None:
    """Also where it was imported by its name."""
    before = old[name]
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get(name) is before:
            vars(module)[name] = new[name]


def change(old: object, new: object, old_node: ast.FunctionDef, new_node: ast.FunctionDef) -> None:
    if ast.dump(old_node) != ast.dump(new_node):
        function, changed = plain(old), plain(new)
        function.__code__ = changed.__code__
        if ast.dump(old_node.args) != ast.dump(new_node.args):
            function.__defaults__, function.__kwdefaults__ = changed.__defaults__, changed.__kwdefaults__


def plain(holder: object) -> FunctionType:
    """The function inside of a property, a static method or a decorator."""
    if isinstance(holder, property):
        holder = holder.fget
    elif isinstance(holder, staticmethod):
        holder = holder.__func__
    function = inspect.unwrap(holder)  # type: ignore[arg-type]
    assert isinstance(function, FunctionType)
    return function
