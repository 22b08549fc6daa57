"""No function branches more than 15 times, counted with its conditions.

What counts: every `if`, loop, `except`, `case` and conditional expression; every further part of an
`and` or `or`; every loop and condition of a comprehension. Functions inside a function count into
it. A helper with one caller and more than four parameters is a piece cut out of that caller rather
than a step of its own: it counts into its caller.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("kernel_lsp", "trainer", "skills", "benchmarks", "scripts", "examples")
NOT_OURS = ("benchmarks/tasks", "benchmarks/programs", "benchmarks/results")
"""Programs under measurement are written as their authors would."""
MAX_COMPLEXITY = 15
MAX_HELPER_PARAMETERS = 4

BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """The functions of one file, and how often each name is used in which of them."""

    path: str
    functions: dict[str, Function] = field(default_factory=dict)
    uses: dict[str, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    """Name -> the outermost function of each use; None for a use outside of every function."""


def own_complexity(function: Function) -> int:
    """1 and every place where the function can go two ways."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


def parameter_count(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(one.arg not in ("self", "cls") for one in named)


def read_module(path: str, tree: ast.Module) -> Module:
    """The module's functions by qualified name, and the uses of each name."""
    module = Module(path)

    def visit(node: ast.AST, prefix: str, within: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            owner = within
            deeper = prefix
            if isinstance(child, FUNCTIONS):
                name = prefix + child.name
                module.functions[name] = child
                owner = within or name
                deeper = f"{name}."
            elif isinstance(child, ast.ClassDef):
                deeper = f"{prefix}{child.name}."
            elif isinstance(child, ast.Name):
                module.uses[child.id].append(within)
            elif isinstance(child, ast.Attribute):
                module.uses[child.attr].append(within)
            visit(child, deeper, owner)

    visit(tree, "", None)
    return module


def find_caller(module: Module, name: str) -> str | None:
    """The one function that uses a private helper with many parameters; None for other
    functions."""
    function = module.functions[name]
    last = name.rpartition(".")[2]
    is_private = last.startswith("_") and not last.startswith("__")
    if not is_private or parameter_count(function) <= MAX_HELPER_PARAMETERS:
        return None
    users = module.uses.get(last, [])
    if len(users) != 1 or users[0] in (None, name):
        return None
    return users[0]


def complexities(module: Module) -> dict[str, int]:
    """The complexity of each function, its helpers with many parameters included."""
    helpers: dict[str, list[str]] = defaultdict(list)
    for name in module.functions:
        caller = find_caller(module, name)
        if caller is not None and not name.startswith(f"{caller}."):
            helpers[caller].append(name)

    def total(name: str, seen: frozenset[str]) -> int:
        count = own_complexity(module.functions[name])
        for helper in helpers[name]:
            if helper not in seen:
                count += total(helper, seen | {helper}) - 1
        return count

    return {name: total(name, frozenset({name})) for name in module.functions}


def product_files() -> Iterator[Path]:
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            if not path.relative_to(ROOT).as_posix().startswith(NOT_OURS):
                yield path


@cache
def measure() -> dict[str, int]:
    """`path:function` -> complexity, of those above the limit."""
    above: dict[str, int] = {}
    for path in product_files():
        shown = path.relative_to(ROOT).as_posix()
        module = read_module(shown, ast.parse(path.read_text(encoding="utf-8")))
        for name, count in complexities(module).items():
            if count > MAX_COMPLEXITY:
                above[f"{shown}:{name}"] = count
    return above


def test_no_function_is_above_the_limit() -> None:
    above = measure()
    assert not above, f"split these by meaning, into named predicates and steps: {above}"


def test_conditions_and_comprehensions_count() -> None:
    source = "def f(a, b):\n    return [x for x in a if x and b or x] if a else None\n"
    assert complexities(read_module("f", ast.parse(source))) == {"f": 6}


def test_a_helper_with_many_parameters_counts_into_its_one_caller() -> None:
    helper = "def _help(a, b, c, d, e):\n    return a if b else c\n"
    once = helper + "def f(x):\n    return _help(x, 1, 2, 3, 4)\n"
    twice = once + "def g(x):\n    return _help(x, 1, 2, 3, 4)\n"
    assert complexities(read_module("f", ast.parse(once)))["f"] == 2
    assert complexities(read_module("f", ast.parse(twice)))["f"] == 1
