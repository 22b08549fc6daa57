"""The short form in which a small writer of kernels is asked, and what its replies become.

    question = encode_question(program, graph, skills)      what it reads
    reply = encode_rewrite(edit, skills)                    a rewrite of the engine, to learn from
    text = assemble(program, graph, reply)                  the rewritten program, to be judged

A question has the target without comments, one line per operation of its graph with dtype and
shape, and the skills that apply. A reply has kernels, the functions that launch them, and a
``forward``. Its kernels are called k1, k2, …, and their launchers f1, f2, …: names that say what
is inside cost a third of the words. `assemble` puts a reply into the program the way the engine
does: the original stays, and takes every call that the reply was not written for. Not covered:
whether a reply is right (the gate), targets that are functions or Triton kernels."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp import parsing
from kernel_lsp.records import Form, GraphView, Operation, OperationRole, Program, SourceEdit

PROGRAM, GRAPH, SKILLS, TRIED, HEARD, WRITE, END = BORDERS = (
    "<|program|>",
    "<|graph|>",
    "<|skills|>",
    "<|tried|>",
    "<|heard|>",
    "<|write|>",
    "<|end|>",
)
"""Where a part begins; each is one token. END ends a reply."""
MAX_SKILL_CHARS = 60
MAX_HEARD_CHARS = 240
_DTYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
    "bool": "b8",
}
_INPUTS = ("get_inputs", "get_init_inputs")
_EAGER = "_forward_eager"
_IMPORTS = ("import triton", "import triton.language as tl")
_FUNCTIONAL = "import torch.nn.functional as F"


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedRewrite:
    """A reply that failed, for a further turn."""

    reply: str
    heard: str
    """Why, in the gate's words."""


class UnreadableReply(ValueError):
    """A reply that no program can be made of."""


# --- questions --------------------------------------------------------------------------------


def encode_question(
    program: Program,
    graph: GraphView,
    skills: Sequence[tuple[str, str]] = (),
    tried: TriedRewrite | None = None,
) -> str:
    """The question in the writer's short form. ``skills``: names with descriptions. Raises
    SyntaxError where the program does not parse."""
    parts = [PROGRAM, _bare_program(program.source), GRAPH, *_encode_graph(graph)]
    if skills:
        parts += [SKILLS, *(_encode_skill(name, text) for name, text in skills)]
    question = "\n".join([*parts, WRITE, ""])
    return question if tried is None else ask_again(question, tried)


def ask_again(question: str, tried: TriedRewrite) -> str:
    """The question of a further turn: the same with the reply that failed, and why."""
    heard = " ".join(tried.heard.split())[:MAX_HEARD_CHARS]
    more = [TRIED, _without_borders(tried.reply), HEARD, _without_borders(heard), WRITE, ""]
    return question.removesuffix(f"{WRITE}\n") + "\n".join(more)


def _bare_program(source: str) -> str:
    """Classes and functions without comments, imports and inputs, which the graph tells."""
    tree = parsing.parse(source)
    kept = [
        node
        for node in tree.body
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
        and getattr(node, "name", None) not in _INPUTS
    ]
    return _without_borders(_bare(kept))


def _bare(nodes: Sequence[ast.stmt]) -> str:
    """Statements without documentation and comments."""
    for statement in nodes:
        for inner in ast.walk(statement):
            if isinstance(inner, ast.FunctionDef | ast.ClassDef) and _is_text(inner.body[0]):
                inner.body = inner.body[1:] or [ast.Pass()]
    return "\n".join(ast.unparse(node) for node in nodes)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _without_borders(text: str) -> str:
    """What others wrote must not end a part."""
    return text.replace("<|", "< |")


def _encode_graph(graph: GraphView) -> Iterator[str]:
    names = [operation.name for operation in graph.operations]
    for operation in graph.operations:
        yield _without_borders(_encode_operation(operation, names))
    if graph.training:
        yield "training"


def _encode_operation(operation: Operation, names: Sequence[str]) -> str:
    """``mean = mean(relu, -1, True) f32[16, 512]``; inputs and weights by their role."""
    forms = ", ".join(map(_encode_form, operation.forms))
    if operation.role is not OperationRole.CALL:
        return f"{operation.name}: {operation.role.value} {forms}"
    arguments = [
        *(names[place] for place in operation.reads),
        *map(str, operation.numbers),
        *operation.words,
    ]
    returned = " returned" if operation.output else ""
    return f"{operation.name} = {operation.op}({', '.join(arguments)}) {forms}{returned}"


def _encode_form(form: Form) -> str:
    layout = "" if form.layout.value == "contiguous" else f" {form.layout.value}"
    return f"{_DTYPES.get(form.dtype, form.dtype)}[{', '.join(map(str, form.shape))}]{layout}"


def _encode_skill(name: str, description: str) -> str:
    text = " ".join(description.split())
    return _without_borders(f"{name}: {text[:MAX_SKILL_CHARS].rpartition(' ')[0] or text}")


# --- replies to learn from --------------------------------------------------------------------


def encode_rewrite(edit: SourceEdit, skills: Sequence[str]) -> str:
    """A rewrite of a module by the engine as a reply. ``skills``: those of its steps, in a first
    line.

    Raises UnreadableReply for a rewrite that changes more than the module's forward."""
    definitions = parsing.parse(edit.definitions).body
    target = next(n for n in parsing.parse(edit.target).body if isinstance(n, ast.ClassDef))
    forward = _method(target, "forward")
    if not _allowed(definitions) or forward is None or not _is_guarded(forward):
        raise UnreadableReply("the rewrite changes more than the module's forward")
    added = {node.name for node in target.body if isinstance(node, ast.FunctionDef)}
    if any(name.startswith("_forward_") for name in added - {_EAGER}):
        raise UnreadableReply("the rewrite puts something around the module's forward")
    guard, *forward.body = forward.body
    _restore_lookups(guard, forward)
    known = (*_IMPORTS, _FUNCTIONAL)
    extra = [line for line in edit.imports if line not in known and "torch" not in line.split()]
    nodes = [*definitions, forward]
    _rename(nodes)
    return "\n".join([f"# {', '.join(dict.fromkeys(skills))}", *extra, _bare(nodes)]) + "\n"


def _method(target: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    found = (n for n in target.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return next(found, None)


def _allowed(nodes: Sequence[ast.stmt]) -> bool:
    return all(isinstance(node, ast.FunctionDef | ast.Assign) for node in nodes)


def _is_guarded(forward: ast.FunctionDef) -> bool:
    first = forward.body[0]
    return len(forward.body) > 1 and isinstance(first, ast.If) and _EAGER in ast.unparse(first)


class _Lookups(ast.NodeTransformer):
    """Names that the guard has bound (``w := self.w``), put back."""

    def __init__(self, guard: ast.stmt) -> None:
        self._bound = {
            n.target.id: n.value for n in ast.walk(guard) if isinstance(n, ast.NamedExpr)
        }

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._bound.get(node.id)
        return node if value is None else self.visit(copy.deepcopy(value))


def _restore_lookups(guard: ast.stmt, forward: ast.FunctionDef) -> None:
    lookups = _Lookups(guard)
    forward.body = [lookups.visit(node) for node in forward.body]


def _short_names(nodes: Sequence[ast.stmt]) -> dict[str, str]:
    """Kernels are called k1, …, launchers f1, …; device functions that a kernel calls keep their
    names."""
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef)]
    kernels = [one for one in functions if one.decorator_list and one.name.endswith("_kernel")]
    launchers = [one for one in functions if not one.decorator_list and one.name != "forward"]
    names = {one.name: f"k{number}" for number, one in enumerate(kernels, 1)}
    return names | {one.name: f"f{number}" for number, one in enumerate(launchers, 1)}


def _rename(nodes: Sequence[ast.stmt]) -> None:
    """Give functions their short names, where they are defined and where they are used."""
    names = _short_names(nodes)
    for inner in (inner for one in nodes for inner in ast.walk(one)):
        if isinstance(inner, ast.Name):
            inner.id = names.get(inner.id, inner.id)
        elif isinstance(inner, ast.FunctionDef):
            inner.name = names.get(inner.name, inner.name)


# --- replies to programs ----------------------------------------------------------------------


def assemble(program: Program, graph: GraphView, reply: str, device: str = "cuda") -> str:
    """The program with a reply in it. ``device``: cuda, or where Triton's interpreter judges.

    Raises UnreadableReply."""
    written = _parse_reply(reply)
    source = "\n".join(program.source.splitlines()) + "\n"
    tree = parsing.parse(source)
    target = next(
        (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == program.entry), None
    )
    old = _method(target, "forward") if target else None
    if target is None or old is None or old.decorator_list:
        raise UnreadableReply(f"{program.entry} has no plain forward")
    if ast.dump(written.forward.args) != ast.dump(old.args):
        raise UnreadableReply("forward has other arguments than the original")
    lines = source.splitlines()
    indent = " " * old.col_offset
    eager = lines[old.lineno - 1].replace("def forward", f"def {_EAGER}", 1)
    kept = [*lines[: old.lineno - 1], eager, *lines[old.lineno : old.end_lineno]]
    new = ["", *_indented(_guarded(written.forward, graph, device), indent)]
    rest = lines[old.end_lineno :]
    head = min([target.lineno, *(d.lineno for d in target.decorator_list)]) - 1
    definitions = [*written.definitions.splitlines(), "", ""] if written.definitions else []
    imports = [*(_IMPORTS if _uses_triton(written.definitions) else ()), *written.imports]
    imports += [] if _FUNCTIONAL in lines else [_FUNCTIONAL]
    kept[head:head] = definitions
    kept[_after_imports(tree) : _after_imports(tree)] = imports
    return "\n".join([*kept, *new, *rest]) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    imports: tuple[str, ...]
    definitions: str
    forward: ast.FunctionDef


def _parse_reply(reply: str) -> _Written:
    try:
        body = parsing.parse(reply.partition(END)[0]).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableReply(f"the reply does not parse: {error}") from None
    imports = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
    nodes = [n for n in body if n not in imports]
    forward = nodes[-1] if nodes else None
    if not isinstance(forward, ast.FunctionDef) or forward.name != "forward":
        raise UnreadableReply("the reply does not end with a forward")
    if not _allowed(nodes):
        raise UnreadableReply("the reply has statements that run when the file is loaded")
    return _Written(
        imports=tuple(map(ast.unparse, imports)),
        definitions="\n\n\n".join(map(ast.unparse, nodes[:-1])),
        forward=forward,
    )


def _uses_triton(definitions: str) -> bool:
    return "triton" in definitions or "tl." in definitions


def _after_imports(tree: ast.Module) -> int:
    """The number of lines up to the last import at the top."""
    ends = [node.end_lineno or 0 for node in tree.body if isinstance(node, ast.Import)]
    return max(ends, default=0)


def _indented(text: str, indent: str) -> list[str]:
    return textwrap.indent(text, indent).splitlines()


def _guarded(forward: ast.FunctionDef, graph: GraphView, device: str) -> str:
    """Calls of another kind than the one that was asked about take the original path."""
    arguments = ", ".join(one.arg for one in forward.args.args[1:])
    given = {one.arg for one in forward.args.args[1:]}
    inputs = [
        operation
        for operation in graph.operations
        if operation.role is OperationRole.INPUT and operation.name in given and operation.forms
    ]
    conditions = [condition for one in inputs for condition in _same_tensor(one, device)]
    conditions += [
        f"self.training is {graph.training}",
        "not (torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()))",
        'not torch.is_autocast_enabled("cuda")',
        "not torch.compiler.is_compiling()",
        "not torch._C._are_functorch_transforms_active()",
    ]
    joined = "\n        and ".join(conditions)
    head = ast.unparse(forward).splitlines()[0]
    body = "\n".join(textwrap.indent(ast.unparse(node), "    ") for node in forward.body)
    return (
        f"{head}\n    # Calls of another kind than this was written for take the original path.\n"
        f"    if not (\n        {joined}\n    ):\n"
        f"        return self.{_EAGER}({arguments})\n{body}"
    )


def _same_tensor(operation: Operation, device: str) -> Iterator[str]:
    name, form = operation.name, operation.forms[0]
    if device == "cuda":
        yield f"{name}.is_cuda"
        yield f"{name}.get_device() == torch.cuda.current_device()"
    yield f"{name}.dtype == torch.{form.dtype}"
    yield f"{name}.shape == {tuple(form.shape)!r}"
    yield f"{name}.is_contiguous()"
    yield f"not (torch.is_grad_enabled() and {name}.requires_grad)"
