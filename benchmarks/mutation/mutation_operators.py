"""Which slips of the pen does Cosmic Ray not make by itself? A term lost, min for max, arguments swapped, a lost clamp.

An operator here is one function: from a node of parso's syntax tree to the texts that may stand in its place. The class
around it is what Cosmic Ray asks for; ``Provider`` is what its entry point ``cosmic_ray.operator_providers`` loads.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from cosmic_ray.operators.operator import Example, Operator  # pyright: ignore[reportMissingImports]
from parso.python.tree import Name  # pyright: ignore[reportMissingImports]
from parso.tree import NodeOrLeaf  # pyright: ignore[reportMissingImports]

Variants = Callable[[NodeOrLeaf], Iterator[str]]

MODULES = {"torch", "math"}
CASTS = {"bool", "cast", "float", "int", "list"}
"""Dropping one changes a type and no value: pyright, strict on this code, is the test of it."""
COMMUTATIVE = {"min", "max", "minimum", "maximum"}
PAIRS = [
    ("min", "max"),
    ("minimum", "maximum"),
    ("sum", "mean"),
    ("std", "var"),
    ("all", "any"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("exp", "expm1"),
    ("cos", "sin"),
    ("float64", "float32"),
]
SWAPS = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])} | {
    "double": "float",
    "square": "abs",
    "rsqrt": "sqrt",
    "sqrt": "exp",
    "log": "log1p",
    "log_softmax": "softmax",
    "logsigmoid": "sigmoid",
    "isnan": "isinf",
    "isfinite": "isnan",
}


def text(node: NodeOrLeaf) -> str:
    return node.get_code(include_prefix=False)


def joined(nodes: list[NodeOrLeaf]) -> str:
    return "".join(node.get_code() for node in nodes).strip()


def is_call(trailer: NodeOrLeaf) -> bool:
    return trailer.type == "trailer" and trailer.children[0].value == "("


def arguments(call: NodeOrLeaf) -> list[NodeOrLeaf]:
    inside = call.children[1:-1]
    if inside and inside[0].type == "arglist":
        return [child for child in inside[0].children if text(child) != ","]
    return inside


def is_positional(argument: NodeOrLeaf) -> bool:
    return argument.type != "argument"


def is_keyword(argument: NodeOrLeaf) -> bool:
    return argument.type == "argument" and text(argument.children[1]) == "="


def calls(node: NodeOrLeaf) -> Iterator[tuple[list[NodeOrLeaf], NodeOrLeaf, list[NodeOrLeaf]]]:
    """What stands before a call, the call, what follows; for each call of ``a.b(...).c(...)``."""
    if node.type in ("atom_expr", "power") and "**" not in [text(child) for child in node.children]:
        for i, child in enumerate(node.children):
            if i and is_call(child):
                yield node.children[:i], child, node.children[i + 1 :]


def is_constructor(before: list[NodeOrLeaf]) -> bool:
    return text(before[-1]).lstrip(".")[:1].isupper()


def drop_operand(node: NodeOrLeaf) -> Iterator[str]:
    """A term, a factor, a condition is forgotten."""
    if node.type in ("arith_expr", "term", "and_test", "or_test", "expr", "and_expr") or (
        node.type == "power" and len(node.children) == 3 and text(node.children[1]) == "**"
    ):
        first, rest = node.children[1], node.children
        yield ("-" if text(first) == "-" else "") + joined(rest[2:])
        for i in range(2, len(rest), 2):
            yield joined(rest[: i - 1] + rest[i + 1 :])


def drop_call(node: NodeOrLeaf) -> Iterator[str]:
    """A method or a function is not applied: ``x.clamp(...)`` and ``widen(x)`` become ``x``."""
    for before, call, after in calls(node):
        of_library = text(before[0]) in MODULES and not any(map(is_call, before))
        if len(before) > 1 and not of_library and before[-1].type == "trailer" and not is_call(before[-1]):
            yield joined(before[:-1] + after)
        elif (len(before) == 1 or of_library) and not is_constructor(before) and joined(before) not in CASTS:
            given = arguments(call)
            if given and is_positional(given[0]):
                yield f"({text(given[0])})" + "".join(child.get_code() for child in after)


def drop_argument(node: NodeOrLeaf) -> Iterator[str]:
    """A keyword argument, or the last positional one, is forgotten: the default takes its place."""
    for before, call, after in calls(node):
        given = arguments(call)
        positional = [argument for argument in given if is_positional(argument)]
        for argument in given:
            is_last = positional and argument is positional[-1] and (len(given) > 1 or len(before) > 1)
            if is_keyword(argument) or is_last:
                left = ", ".join(text(other) for other in given if other is not argument)
                yield joined(before) + f"({left})" + "".join(child.get_code() for child in after)


def swap_arguments(node: NodeOrLeaf) -> Iterator[str]:
    """Two neighbouring positional arguments change places."""
    for before, call, after in calls(node):
        given = arguments(call) if text(before[-1]).lstrip(".") not in COMMUTATIVE else []
        for i in range(len(given) - 1):
            if is_positional(given[i]) and is_positional(given[i + 1]) and not same_number(given[i], given[i + 1]):
                order = [*given[:i], given[i + 1], given[i], *given[i + 2 :]]
                listed = ", ".join(map(text, order))
                yield joined(before) + f"({listed})" + "".join(child.get_code() for child in after)


def same_number(a: NodeOrLeaf, b: NodeOrLeaf) -> bool:
    return a.type == b.type == "number" and ast.literal_eval(text(a)) == ast.literal_eval(text(b))


def swap_name(node: NodeOrLeaf) -> Iterator[str]:
    """Another function of the same form: min for max, sum for mean, float32 for float64."""
    if node.type == "name" and node.value in SWAPS:
        after = node.get_next_leaf()
        if node.parent.type == "trailer" or (after is not None and after.value in ("(", "=")):
            yield SWAPS[node.value]


def constant_condition(node: NodeOrLeaf) -> Iterator[str]:
    """A branch that is always taken, or never."""
    if node.parent is None or node.parent.type not in ("if_stmt", "test", "comp_if"):
        return
    before = node.get_previous_sibling()
    if before is not None and text(before) in ("if", "elif"):
        yield "True"
        yield "False"


def drop_statement(node: NodeOrLeaf) -> Iterator[str]:
    """A call, a raise, an update in place, or a second assignment to a name is left out."""
    if node.parent is None or node.parent.type != "simple_stmt" or node.parent.children[0] is not node:
        return
    if node.type in ("atom_expr", "raise_stmt") or (node.type == "expr_stmt" and not is_first_assignment(node)):
        yield "pass"


def is_first_assignment(node: NodeOrLeaf) -> bool:
    """A new name: to leave it out is a NameError, which proves nothing about a test."""
    if node.children[1].type != "operator":
        return node.children[1].type == "annassign"
    targets = node.get_defined_names(include_setitem=True)
    function = node.search_ancestor("funcdef")
    if function is None or any(name.parent.type == "trailer" for name in targets) or "[" in text(node.children[0]):
        return function is None
    before = function.get_code().split(text(node))[0]
    return not all(f"{name.value} = " in before or f"{name.value}: " in before for name in targets)


def drop_bound(node: NodeOrLeaf) -> Iterator[str]:
    """A slice that starts at the beginning, or runs to the end."""
    if node.type == "subscript":
        for child in node.children:
            if text(child) != ":":
                yield "".join(text(other) for other in node.children if other is not child)


def nudge_number(node: NodeOrLeaf) -> Iterator[str]:
    """A float that is off by one per cent, where Cosmic Ray's own change is by 1."""
    if node.type == "number" and not node.value.isdigit() and ast.literal_eval(node.value) != 0:
        yield repr(ast.literal_eval(node.value) * 1.01)


def change_string(node: NodeOrLeaf) -> Iterator[str]:
    """Another word: a mode, a key, the name of a reduction."""
    if node.type == "string" and node.value[0] in "\"'":
        yield node.value[0] + "XX" + node.value[1:]


EXAMPLES: dict[Variants, list[tuple[str, str, int]]] = {
    drop_operand: [("x = a - b * c", "x = -b * c", 0), ("x = a - b * c", "x = a", 1)],
    drop_call: [("y = widen(x).clamp(0)", "y = widen(x)", 1), ("y = widen(x).clamp(0)", "y = (x).clamp(0)", 0)],
    drop_argument: [("y = x.sum(0, keepdim=True)", "y = x.sum(0)", 1)],
    swap_arguments: [("y = k3(a, b)", "y = k3(b, a)", 0)],
    swap_name: [("y = x.clamp(min=0)", "y = x.clamp(max=0)", 0)],
    constant_condition: [("y = a if c else b", "y = a if False else b", 1)],
    drop_statement: [("f(x)\n", "pass\n", 0)],
    drop_bound: [("y = x[1:n]", "y = x[1:]", 1)],
    nudge_number: [("y = 2.0", "y = 2.02", 0)],
    change_string: [('y = "off"', 'y = "XXoff"', 0)],
}


def operator(variants: Variants) -> type[Operator]:
    class Rewrite(Operator):
        def mutation_positions(self, node: NodeOrLeaf) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
            for _ in variants(node):
                yield node.start_pos, node.end_pos

        def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
            """One leaf that holds the text: all that is asked of a mutated tree is its code."""
            return Name(list(variants(node))[index], node.start_pos, prefix=node.get_first_leaf().prefix)

        @classmethod
        def examples(cls) -> tuple[Example, ...]:
            return tuple(Example(before, after, i) for before, after, i in EXAMPLES[variants])

    return Rewrite


OPERATORS = {variants.__name__: operator(variants) for variants in EXAMPLES}


class Provider:
    """The operators by name, as Cosmic Ray asks for them."""

    def __iter__(self) -> Iterator[str]:
        return iter(OPERATORS)

    def __getitem__(self, name: str) -> type[Operator]:
        return OPERATORS[name]
