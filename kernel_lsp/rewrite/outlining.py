"""A run of statements of a module's ``forward`` as a method of its own, with the text around it
untouched.

`outline(text, entry, part) -> Outlined` puts one call in the place of the statements and a method
with these very lines behind ``forward``: its parameters are the locals that they read, its results
the locals that are read after them. The program computes what it did. `runs(text, entry, lines)`
lists the runs between lines that cannot be in one, `halves` those of one run, `readers` the lines
that read a name.

What a method could not do for its caller is refused with a reason: names that may be unbound, a
variable that a closure shares, ``return`` in the middle, ``del``, ``global``, ``nonlocal``,
``yield``, ``locals()``. Standard library only. Not covered: statements inside of loops, ``with``
and ``if`` (a run is of ``forward``'s own level), frames that are looked at from outside
(sys._getframe)."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp import parsing
from kernel_lsp.errors import CaptureError
from kernel_lsp.records import Part

NAME = "_forward_part"
NO_GRAD = ("torch.no_grad()", "torch.inference_mode()")
"""Decorators that a rewritten ``forward`` keeps."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp)
"""Their bodies run later, or see names otherwise: what they use of the function they share with
it."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)
LOOKS_AROUND = frozenset({"locals", "vars", "dir", "eval", "exec"})
ADVICE = "optimize the modules that it calls"


@dataclass(frozen=True, kw_only=True)
class Outlined:
    """A program in which a run of statements is a method."""

    text: str
    method: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Empty: the run ends with the function's own ``return``."""


def outline(text: str, entry: str, part: Part) -> Outlined:
    """The program with the part's statements as a method. Raises CaptureError with the reason why
    these statements cannot be moved."""
    forward = _OutlinedForward(text, entry)
    run = [s for s in forward.body if part.first <= _first_line(s) and _last_line(s) <= part.last]
    if not run:
        raise CaptureError(f"{entry}.forward has no statement on these lines", "optimize it again")
    return forward.outlined(run)


def decorators_of(text: str, entry: str) -> list[str]:
    """The decorators of the class's own ``forward``, as they are written; none where it inherits
    it."""
    owner = _class_of(parsing.parse(text), entry)
    named = [
        one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name == "forward"
    ]
    return [ast.unparse(one) for one in named[-1].decorator_list] if named else []


def runs(text: str, entry: str, lines: Collection[int]) -> list[Part]:
    """The longest runs of ``forward``'s statements that hold none of these lines and compute
    something.

    Raises CaptureError when the function cannot be taken apart at all.
    """
    forward = _OutlinedForward(text, entry)
    found: list[list[ast.stmt]] = [[]]
    for statement in forward.body:
        if forward.separates(statement) or any(
            _first_line(statement) <= line <= _last_line(statement) for line in lines
        ):
            found.append([])
        else:
            found[-1].append(statement)
    computing = [run for run in found if any(map(_computes, run))]
    return [Part(first=_first_line(run[0]), last=_last_line(run[-1])) for run in computing]


def statement_lines(text: str, entry: str, line: int) -> tuple[int, int] | None:
    """First and last line of ``forward``'s own statement that holds a line; None: it is in none."""
    for statement in _OutlinedForward(text, entry).body:
        if _first_line(statement) <= line <= _last_line(statement):
            return _first_line(statement), _last_line(statement)
    return None


def halves(text: str, entry: str, part: Part) -> list[Part]:
    """The first and the second half of a run, by statements; nothing of a single one."""
    run = [
        s for s in _OutlinedForward(text, entry).body if part.first <= _first_line(s) <= part.last
    ]
    middle = len(run) // 2
    pair = (run[:middle], run[middle:]) if middle else ()
    computing = [one for one in pair if any(map(_computes, one))]
    return [Part(first=_first_line(one[0]), last=_last_line(one[-1])) for one in computing]


def readers(text: str, entry: str, part: Part, names: Collection[str]) -> list[int]:
    """Lines on which statements of a run begin that read one of these names."""
    run = [
        s for s in _OutlinedForward(text, entry).body if part.first <= _first_line(s) <= part.last
    ]
    return [_first_line(s) for s in run if not set(names).isdisjoint(_loaded_names(s, frozenset()))]


def giving(text: str, entry: str, part: Part, name: str | None) -> int | None:
    """The line on which the last statement of a run begins that binds a name, or without a name the
    run's own ``return``; None: there is none."""
    run = [
        s for s in _OutlinedForward(text, entry).body if part.first <= _first_line(s) <= part.last
    ]
    if name is None:
        return _first_line(run[-1]) if run and isinstance(run[-1], ast.Return) else None
    return next((_first_line(s) for s in reversed(run) if name in _stored_names([s])), None)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Statements of a body that follow each other, on lines of their own, and those around them."""

    statements: Sequence[ast.stmt]
    before: Sequence[ast.stmt]
    after: Sequence[ast.stmt]
    first: int
    last: int
    """Lines, both counted in."""


class _OutlinedForward:
    """The ``forward`` of one class of a program."""

    def __init__(self, text: str, entry: str) -> None:
        """Raises CaptureError."""
        self.text, self.entry = text, entry
        self.lines = text.split("\n")
        self.owner = _class_of(parsing.parse(text), entry)
        named = [
            n
            for n in self.owner.body
            if isinstance(n, ast.FunctionDef) and n.name == "forward" and not _is_overload(n)
        ]
        if len(named) != 1:
            raise CaptureError(
                f"{entry} has no forward of its own", "optimize the class that defines it"
            )
        self.function = named[0]
        parameters = self.function.args
        every = [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]
        every += [one for one in (parameters.vararg, parameters.kwarg) if one is not None]
        self.parameters = [one.arg for one in every]
        if not self.parameters or self.parameters[0] != "self":
            raise self._refusal("does not call its instance self")
        has_docstring = ast.get_docstring(self.function, clean=False) is not None
        self.body: list[ast.stmt] = self.function.body[1 if has_docstring else 0 :]
        self._require_movable()
        stored = _stored_names(self.body)
        if "self" in stored:
            raise self._refusal("gives self another value")
        self.locals = {*self.parameters, *stored}

    def separates(self, statement: ast.stmt) -> bool:
        """Whether the statement can be in no run: it leaves the function early, imports or
        deletes."""
        if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Delete)):
            return True
        is_last = statement is self.body[-1] and isinstance(statement, ast.Return)
        return not is_last and any(isinstance(node, ast.Return) for node in _own_nodes(statement))

    def _refusal(self, why: str) -> CaptureError:
        return CaptureError(f"no part of {self.entry}.forward can be a target: it {why}", ADVICE)

    def _require_movable(self) -> None:
        for node in ast.walk(self.function):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                raise self._refusal(
                    f"declares {', '.join(node.names)} {type(node).__name__.lower()}"
                )
            if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
                raise self._refusal("is a generator or a coroutine")
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in LOOKS_AROUND:
                raise self._refusal(f"calls {called.id}(), which sees its variables")

    def outlined(self, statements: Sequence[ast.stmt]) -> Outlined:
        """The class with these statements as a method of their own. Raises RewriteError where they
        cannot be moved."""
        run = self._run(statements)
        self._require_own_text(run)
        returns = self._returns(run)
        self._require_no_shared_variable(run)
        inputs, outputs = self._flow(run, returns=returns)
        if not returns and not outputs:
            raise self._unmovable(run, "nothing that they compute is used after them")
        method = self._method()
        return Outlined(
            text=self._text(run, method, inputs, outputs),
            method=method,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
        )

    def _run(self, statements: Sequence[ast.stmt]) -> _Run:
        first, last = _first_line(statements[0]), _last_line(statements[-1])
        run = _Run(
            statements=statements,
            before=[s for s in self.body if _last_line(s) < first],
            after=[s for s in self.body if _first_line(s) > last],
            first=first,
            last=last,
        )
        is_alone = not self.lines[first - 1][: statements[0].col_offset].strip(" \t@")
        if not is_alone or len([*run.before, *statements, *run.after]) != len(self.body):
            raise self._unmovable(run, "a line of theirs holds another statement")
        return run

    def _unmovable(self, run: _Run, why: str) -> CaptureError:
        return CaptureError(
            f"lines {run.first} to {run.last} of {self.entry} cannot be a target: {why}", ADVICE
        )

    def _require_own_text(self, run: _Run) -> None:
        for statement in run.statements:
            for node in ast.walk(statement):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    raise self._unmovable(run, "they import")
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                    raise self._unmovable(run, f"they delete {node.id}")
                if isinstance(node, ast.Attribute) and node.attr.startswith(NAME):
                    raise self._unmovable(run, "they were rewritten before")

    def _returns(self, run: _Run) -> bool:
        """Whether the run ends with the function's only way out from within it."""
        found = [
            node
            for statement in run.statements
            for node in _own_nodes(statement)
            if isinstance(node, ast.Return)
        ]
        if not found:
            return False
        if found != [run.statements[-1]] or found[0].value is None or run.after:
            raise self._unmovable(run, "they return in the middle")
        return True

    def _require_no_shared_variable(self, run: _Run) -> None:
        """A closure sees what its variable becomes later; a method and its caller have one each."""
        for statements, later in ((run.before, run.statements), (run.statements, run.after)):
            stored = self.locals.intersection(_stored_names(later))
            nodes = (node for statement in statements for node in ast.walk(statement))
            for scope in (node for node in nodes if isinstance(node, SCOPES)):
                if shared := {n.id for n in ast.walk(scope) if isinstance(n, ast.Name)} & stored:
                    raise self._unmovable(
                        run, f"a function or generator inside shares {min(shared)}"
                    )

    def _flow(self, run: _Run, *, returns: bool) -> tuple[list[str], list[str]]:
        """Locals that go in and come out, in the order in which they are first named."""
        known = _NameFlow(set(self.parameters))
        known.block(run.before)
        inside = _NameFlow(set())
        inside.block(run.statements)
        used = _NameFlow(set())
        used.block(run.after)
        wanted = used.read_before | used.read_unsure
        outputs = set() if returns else set(_stored_names(run.statements)) & wanted
        kept = {*(outputs - inside.surely), *inside.read_unsure} & {
            *self.parameters,
            *_stored_names(run.before),
        }
        inputs = (inside.read_before & self.locals) | kept
        if unbound := sorted(inputs - known.bound):
            raise self._unmovable(run, f"{unbound[0]} may be unbound before them")
        if unbound := sorted(outputs - inside.bound - inputs):
            raise self._unmovable(run, f"{unbound[0]} may be unbound after them")
        named = dict.fromkeys([*self.parameters, *_stored_names(self.body)])
        return [n for n in named if n in inputs and n != "self"], [n for n in named if n in outputs]

    def _method(self) -> str:
        """A name that neither the class nor another one of the program has."""
        plain = all(
            ast.unparse(b) in ("nn.Module", "torch.nn.Module", "Module") for b in self.owner.bases
        )
        stem = NAME if plain else f"{NAME}_{self.owner.name.lower()}"
        number, name = 1, stem
        while re.search(rf"\b_?{name.lstrip('_')}\w*\b", self.text) and number < 100:
            number += 1
            name = f"{stem}_{number}"
        return name

    def _text(self, run: _Run, method: str, inputs: Sequence[str], outputs: Sequence[str]) -> str:
        """The program with the run's statements in a method; without outputs it returns what they
        do."""
        body = self.lines[run.first - 1 : run.last]
        inner = body[0][: len(body[0]) - len(body[0].lstrip())]
        header = self.lines[self.function.lineno - 1]
        outer = header[: len(header) - len(header.lstrip())]
        call = f"self.{method}({', '.join(inputs)})"
        results = ", ".join(outputs)
        own = [f"{outer}def {method}({', '.join(['self', *inputs])}):", *body]
        own += [f"{inner}return {results}"] if outputs else []
        end = self.function.end_lineno or run.last
        lines = [
            *self.lines[: run.first - 1],
            f"{inner}{results} = {call}" if outputs else f"{inner}return {call}",
            *self.lines[run.last : end],
            "",
            *own,
            *self.lines[end:],
        ]
        return "\n".join(lines)


class _NameFlow:
    """Which names a block of statements reads before it has bound them, and which it binds."""

    def __init__(self, bound: set[str]) -> None:
        self.bound = bound
        """After every way through the block, unless a context manager swallows an exception."""
        self.surely = set(bound)
        """The same without what is bound within ``with``."""
        self.read_before: set[str] = set()
        self.read_unsure: set[str] = set()
        """Read where they are bound but not surely."""

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Follow the statements in their order."""
        for statement in statements:
            self._statement(statement)

    def _bind(self, names: Collection[str]) -> None:
        self.bound |= set(names)
        self.surely |= set(names)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            self._evaluate(node.test)
            self._branches([node.body, node.orelse])
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._read(node.iter)
            self._loop(node.body, node.target)
            self._branches([node.orelse, []])
        elif isinstance(node, ast.While):
            self._read(node.test)
            self._loop(node.body, None)
            self._branches([node.orelse, []])
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._with(node)
        elif isinstance(node, ast.Try | ast.Match) or type(node).__name__ == "TryStar":
            self._read(node)  # any of its lines may be the last that ran: nothing is bound for sure
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._read(node)
            self._bind([node.name])
        else:
            self._simple(node)

    def _simple(self, node: ast.stmt) -> None:
        self._evaluate(node)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._note(node.target.id)
        if isinstance(node, ast.Assign):
            self._bind([n for target in node.targets for n in _bound_by(target)])
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            self._bind(_bound_by(node.target))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._bind([(a.asname or a.name).partition(".")[0] for a in node.names])
        elif isinstance(node, ast.Delete):
            gone = {n for target in node.targets for n in _bound_by(target)}
            self.bound -= gone
            self.surely -= gone

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self._read(item.context_expr)
            if item.optional_vars is not None:
                self._read(item.optional_vars)
                self._bind(_bound_by(item.optional_vars))
        surely = set(self.surely)
        self.block(node.body)
        self.surely = surely & self.surely

    def _branches(self, branches: list[list[ast.stmt]]) -> None:
        ends = [self._branch(branch) for branch in branches]
        going_on = [
            one for branch, one in zip(branches, ends, strict=True) if not _leaves(branch)
        ] or ends
        self.bound = set.intersection(*(one.bound for one in going_on))
        self.surely = set.intersection(*(one.surely for one in going_on))

    def _loop(self, body: list[ast.stmt], target: ast.expr | None) -> None:
        inner = _NameFlow(set(self.bound))
        inner.surely = set(self.surely)
        if target is not None:
            inner._read(target)
            inner._bind(_bound_by(target))
        inner.block(body)
        self._add_reads(inner)
        for statement in body:  # a loop may not run, and `del` in it may
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                    self.bound.discard(node.id)
                    self.surely.discard(node.id)

    def _branch(self, body: list[ast.stmt]) -> _NameFlow:
        one = _NameFlow(set(self.bound))
        one.surely = set(self.surely)
        one.block(body)
        self._add_reads(one)
        return one

    def _add_reads(self, inner: _NameFlow) -> None:
        self.read_before |= inner.read_before
        self.read_unsure |= inner.read_unsure

    def _evaluate(self, node: ast.AST) -> None:
        """Once, and with what it binds by the way."""
        self._read(node)
        self._bind(list(_bound_by_the_way(node)))

    def _read(self, node: ast.AST) -> None:
        for name in _loaded_names(node, frozenset()):
            self._note(name)

    def _note(self, name: str) -> None:
        if name not in self.bound:
            self.read_before.add(name)
        elif name not in self.surely:
            self.read_unsure.add(name)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Nothing goes on behind it."""
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _loaded_names(node: ast.AST, hidden: frozenset[str]) -> Iterator[str]:
    """Names that are read (or deleted), without the variables of comprehensions and lambdas."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Store) and node.id not in hidden:
            yield node.id
        return
    if isinstance(node, (*COMPREHENSIONS, ast.GeneratorExp)):
        own = hidden | {name for one in node.generators for name in _bound_by(one.target)}
        yield from _loaded_names(node.generators[0].iter, hidden)
        for child in ast.iter_child_nodes(node):
            yield from _loaded_names(child, own)
        return
    if isinstance(node, ast.Lambda):
        for default in (*node.args.defaults, *node.args.kw_defaults):
            yield from _loaded_names(default, hidden) if default is not None else ()
        arguments = (one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg))
        yield from _loaded_names(node.body, hidden.union(arguments))
        return
    for child in ast.iter_child_nodes(node):
        yield from _loaded_names(child, hidden)


def _bound_by(target: ast.AST) -> list[str]:
    return [
        n.id
        for n in ast.walk(target)
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    ]


def _bound_by_the_way(node: ast.AST) -> Iterator[str]:
    """Names of ``:=`` where no condition comes before it."""
    if isinstance(node, (ast.Lambda, ast.IfExp, *COMPREHENSIONS, ast.GeneratorExp)):
        return
    if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
        yield node.target.id
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.BoolOp):
        children = children[1:2]  # behind the operator
    elif isinstance(node, ast.Compare):
        children = [node.left, node.comparators[0]]
    for child in children:
        yield from _bound_by_the_way(child)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Without what functions inside of it hold."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own_nodes(child)


def _stored_names(statements: Sequence[ast.AST]) -> list[str]:
    """Names that these statements may bind in their own function, in order."""
    found: dict[str, None] = {}
    for statement in statements:
        _collect_stored(statement, found)
    return list(found)


def _collect_stored(node: ast.AST, found: dict[str, None]) -> None:
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, (*COMPREHENSIONS, ast.GeneratorExp)):
        walrus = [n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr)]
        found.update(dict.fromkeys(n.id for n in walrus if isinstance(n, ast.Name)))
        return
    found.update(dict.fromkeys(_own_names(node)))
    if isinstance(node, (ast.Name, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for child in ast.iter_child_nodes(node):
        _collect_stored(child, found)


def _own_names(node: ast.AST) -> list[str]:
    """Names that the node itself binds in its function, not those of its parts."""
    name: str | None = None
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            pass
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            pass
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(alias.asname or alias.name).partition(".")[0] for alias in names]
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            pass
        case ast.MatchMapping(rest=name):
            pass
    return [name] if name else []


def _is_overload(function: ast.FunctionDef) -> bool:
    """A signature for type checkers alone."""
    names = (ast.unparse(one).rpartition(".")[2] for one in function.decorator_list)
    return "overload" in names


def _computes(statement: ast.stmt) -> bool:
    """A call or an operator: something that may be faster."""
    return any(isinstance(n, (ast.Call, ast.BinOp, ast.AugAssign)) for n in ast.walk(statement))


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def _class_of(tree: ast.Module, entry: str) -> ast.ClassDef:
    node: ast.AST = tree
    for name in entry.split("."):
        named = [n for n in ast.walk(node) if isinstance(n, ast.ClassDef) and n.name == name]
        if not named:
            raise CaptureError(f"{entry} is no class of the program", "optimize it again")
        node = named[-1]
    assert isinstance(node, ast.ClassDef)
    return node
