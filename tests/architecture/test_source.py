"""Does the source keep the rules that remove whole kinds of faults? Read from its syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/tightrope"
TREES = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}

STEP_LINES = 60
ALGORITHM_LINES = 200
ID_WORDS = re.compile(r"^(pad|eos|bos)(_token)?(_ids?)?$")
SYNONYMS = {
    "query_responses", "actor", "actor_model", "pi_old", "old_pi", "cliprange", "cliprange_value", "vf_coef", "kl_coef",
    "init_kl_coef", "lmbda", "lambd", "ref_policy", "old_log_probs", "log_probs", "ent_coef",
}  # fmt: skip

Finder = Callable[[ast.AST], bool]


def called(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def imports(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {node.module.split(".")[0]} if isinstance(node, ast.ImportFrom) and node.module else set()


def compares_a_token_id(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
        return False
    sides = [ast.unparse(side).rsplit(".", 1)[-1] for side in (node.left, *node.comparators)]
    return any(ID_WORDS.match(side) for side in sides)


BANNED: dict[str, Finder] = {
    "pickle": lambda node: bool(imports(node) & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}),
    "torch.load and torch.save": lambda node: called(node) in {"torch.load", "torch.save"},
    "eval and exec": lambda node: called(node) in {"eval", "exec"},
    "yaml other than ruamel": lambda node: "yaml" in imports(node),
    "a shell": lambda node: (
        (isinstance(node, ast.keyword) and node.arg == "shell") or called(node) in {"os.system", "os.popen"}
    ),
    "attribute probing": lambda node: called(node) in {"hasattr", "getattr", "setattr", "delattr"},
    "comparison with a special token's id": compares_a_token_id,
    "a bare except": lambda node: isinstance(node, ast.ExceptHandler) and node.type is None,
    "an error swallowed": lambda node: (
        isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and ast.unparse(node.type) in {"Exception", "BaseException"}
        and all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)
    ),
    "global variables": lambda node: isinstance(node, ast.Global),
    "open keyword arguments": lambda node: (
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.kwarg is not None
    ),
    "trust_remote_code": lambda node: (
        isinstance(node, ast.keyword)
        and node.arg == "trust_remote_code"
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
    ),
    "a synonym of a glossary word": lambda node: (
        (isinstance(node, ast.Name) and node.id in SYNONYMS) or (isinstance(node, ast.arg) and node.arg in SYNONYMS)
    ),
}
ALLOWED = {
    # transformers calls the mask function of an attention implementation with its own keyword arguments
    ("open keyword arguments", "models/attention.py"),
    ("open keyword arguments", "models/lower_layers.py"),
    # what runs inside the sandbox, after every door is shut: running the response is its purpose
    ("eval and exec", "scoring/code/child.py"),
}


def found(finder: Finder, tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if finder(node):
            yield getattr(node, "lineno", 0)


@pytest.mark.parametrize("rule", BANNED)
def test_the_source_has_none_of(rule) -> None:
    seen = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path, tree in TREES.items()
        for line in found(BANNED[rule], tree)
        if (rule, str(path.relative_to(SOURCE))) not in ALLOWED
    ]
    assert not seen, f"{rule}: {seen}"


EXAMPLES = {
    "pickle": "import pickle",
    "torch.load and torch.save": "torch.load(path)",
    "eval and exec": "eval(text)",
    "yaml other than ruamel": "import yaml",
    "a shell": "run(command, shell=True)",
    "attribute probing": "getattr(model, 'score', None)",
    "comparison with a special token's id": "mask = tokens != tokenizer.pad_token_id",
    "a bare except": "try:\n    f()\nexcept:\n    raise",
    "an error swallowed": "try:\n    f()\nexcept Exception:\n    pass",
    "global variables": "def f():\n    global x",
    "open keyword arguments": "def f(**kwargs): ...",
    "trust_remote_code": "load(trust_remote_code=True)",
    "a synonym of a glossary word": "def f(cliprange): ...",
}


@pytest.mark.parametrize("rule", BANNED)
def test_each_rule_notices_its_example(rule) -> None:
    assert list(found(BANNED[rule], ast.parse(EXAMPLES[rule])))


def test_permissions_are_still_needed() -> None:
    for rule, name in ALLOWED:
        assert list(found(BANNED[rule], TREES[SOURCE / name])), f"{name} does not need {rule!r} any more"


def test_the_training_step_fits_one_screen() -> None:
    assert len((SOURCE / "training/step.py").read_text().splitlines()) <= STEP_LINES


@pytest.mark.parametrize(
    "path",
    sorted(set((SOURCE / "algorithms").glob("*.py")) - {SOURCE / "algorithms/options.py"}),
    ids=lambda path: path.stem,
)
def test_an_algorithm_is_short(path) -> None:
    assert len(path.read_text().splitlines()) < ALGORITHM_LINES


@pytest.mark.parametrize("path", TREES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_says_what_question_it_answers(path) -> None:
    assert ast.get_docstring(TREES[path])
