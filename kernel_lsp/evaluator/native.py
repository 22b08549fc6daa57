"""Native code of a candidate: what its `load_inline` calls ask a compiler to build, and the
building.

    extensions = native.find(source)                the calls, as plain data
    built = await native.build(sandbox, …)           in a confined process of its own

C++ and CUDA are guests: they are judged, never written. A candidate names its sources as literals,
so that the parent can read them before anything runs; they are built once, by a process that
compiles and loads nothing, and every process that runs the candidate gets the same library under
its own `load_inline` (running/native_loading.py). What runs is confined like all of a candidate.
Not covered: setup.py builds, `load` of source files, libraries that are linked by name. Native code
is not seen by guards that watch Python: the judge (values) and the parent's clock see what it does.
Standard library only."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from kernel_lsp import parsing
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator.guards.names import ModuleNames
from kernel_lsp.records import Json, Progress

TYPE_CHECKING = False
if TYPE_CHECKING:  # the worker reads this file in the project's interpreter, which lacks psutil
    from kernel_lsp.evaluator.findings import PartialEvaluation
    from kernel_lsp.evaluator.processes.sandbox import Sandbox
    from kernel_lsp.evaluator.request import EvaluationRequest

MODULE = "torch.utils.cpp_extension"
BUILD_S = 240.0
"""nvcc takes half a minute for one file that includes torch/extension.h, on a busy machine more."""
POSITIONAL = ("name", "cpp_sources", "cuda_sources", "functions")
LISTS = ("cpp_sources", "cuda_sources", "functions", "extra_cflags", "extra_cuda_cflags")
"""A text, or several."""
MAX_EXTENSIONS = 8
"""Of one candidate: each may take `BUILD_S`."""
MAX_NAME_CHARS = 100
SWITCHES = ("with_cuda", "no_implicit_headers")
IGNORED = ("verbose", "build_directory", "keep_intermediates", "use_pch")
"""Where and how loudly it is built is the gate's to say."""
REMEDY = "call load_inline with literal texts (names of the module that are assigned once will do)"


def uses(source: str) -> bool:
    """Whether a program names the module that builds native code."""
    return "cpp_extension" in source


def find(source: str) -> tuple[Json, ...]:
    """Each `load_inline` call as the arguments that decide what is built. Raises EvaluationError
    for one that is not written in literals."""
    try:
        tree = parsing.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()  # loading it will say why
    names, known = ModuleNames(tree), parsing.assigned_once(tree)
    found: dict[str, Json] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = names.dotted(node.func)
            if called == f"{MODULE}.load_inline":
                extension = _read(node, known)
                found[key(extension)] = extension
                if len(found) > MAX_EXTENSIONS:
                    raise _refusal(node, f"at most {MAX_EXTENSIONS} extensions are judged")
            elif called == f"{MODULE}.load":
                raise _refusal(node, "load() reads files, which no judging process sees")
    return tuple(found.values())


def key(extension: Mapping[str, Any]) -> str:
    """A hash that is the same for a call as it is written and as it is made."""
    return hashlib.sha256(json.dumps(extension, sort_keys=True).encode()).hexdigest()


def normalized(arguments: Mapping[str, Any]) -> Json:
    """The arguments that decide what is built; one text is a list of one. Raises ValueError."""
    made = {
        name: [value] if isinstance(value, str) and name in LISTS else value
        for name, value in arguments.items()
        if name not in IGNORED and value is not None
    }
    made = {n: list(value) if isinstance(value, tuple) else value for n, value in made.items()}
    for name, value in made.items():
        if not _is_judged(name, value):
            raise ValueError(f"{name} is no argument that is judged here")
    if not _is_module_name(made.get("name")):
        raise ValueError("its name is no name of a module")
    return made


def _is_judged(name: str, value: Any) -> bool:
    if name in LISTS:
        return _is_texts(value)
    return name == "name" or (name in SWITCHES and isinstance(value, bool))


def _is_module_name(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier() and len(value) <= MAX_NAME_CHARS


def _is_texts(value: Any) -> bool:
    """A list of texts, or texts by name, all of which UTF-8 can write."""
    if not isinstance(value, (list, dict)):
        return False
    texts = [*value, *value.values()] if isinstance(value, dict) else value
    return all(map(_is_text, texts))


def _is_text(value: Any) -> bool:
    """Half a pair of UTF-16 is none."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


async def build(
    sandbox: Sandbox,
    request: EvaluationRequest,
    found: PartialEvaluation,
    report: Callable[[Progress], None],
) -> tuple[list[Json] | None, list[bytes]]:
    """The extensions as a process finds them (running/native_loading.py), and their libraries;
    None: this candidate may bring none. Raises Rejected for what does not compile,
    EvaluationError."""
    if not request.native:
        return None, []
    from kernel_lsp.evaluator.findings import candidate  # in the host alone, as above

    made: list[Json] = []
    libraries: list[bytes] = []
    extensions = find(request.candidate_source)
    if not extensions:
        return made, libraries
    report(Progress(phase="evaluate", message="building native code"))
    sources = json.dumps(extensions, sort_keys=True)
    builder = await sandbox.builder(sources)
    for extension in extensions:
        named: Json = {"key": key(extension), "name": extension["name"]}
        reply, blobs = await candidate(
            builder, "build", BUILD_S, extension=extension, place=f"{named['key']}.so"
        )
        found.environment["native"] = str(reply.get("compiler", ""))[:200]
        made.append(named)
        libraries.append(blobs[0])
    await sandbox.end_builder(builder, sources)
    found.check(
        "native-code",
        None,
        "its native code is built and run confined; guards that watch Python do not see into it",
    )
    return made, libraries


def _read(node: ast.Call, known: Mapping[str, ast.expr]) -> Json:
    arguments: dict[str, Any] = {}
    try:
        for name, value in zip(POSITIONAL, node.args, strict=False):
            arguments[name] = _literal(value, known)
        if len(node.args) > len(POSITIONAL) or any(word.arg is None for word in node.keywords):
            raise ValueError("its arguments are not named")
        for word in node.keywords:
            if word.arg not in IGNORED:
                arguments[str(word.arg)] = _literal(word.value, known)
        return normalized(arguments)
    except ValueError as error:
        raise _refusal(node, str(error)) from None


def _literal(node: ast.expr, known: Mapping[str, ast.expr]) -> Any:
    """Raises ValueError."""
    if isinstance(node, ast.Name) and node.id in known:
        return _literal(known[node.id], {})
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item, known) for item in node.elts]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):  # `{[]: 1}` is a TypeError
        raise ValueError(f"{ast.unparse(node)[:60]} is no literal") from None


def _refusal(node: ast.Call, why: str) -> EvaluationError:
    return EvaluationError(f"could not judge: line {node.lineno} builds native code: {why}", REMEDY)
