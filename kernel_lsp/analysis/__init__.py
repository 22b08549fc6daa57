"""Snapshot to targets and findings, without running anything. Standard library only, no disk.

Never raises on user code: broken text becomes a ParseProblem, and a rule that crashes one of the
analysis's failures. Knows nothing about LSP; positions are string offsets into the snapshot's
text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kernel_lsp.analysis.fingerprint import fingerprint
from kernel_lsp.analysis.names import FileNames
from kernel_lsp.analysis.rules import RULES, SCRIPT_RULES, Rule, ScriptRule, page
from kernel_lsp.analysis.rules.base import Hit, RuleSite, make_finding
from kernel_lsp.analysis.scripts import Script, is_script
from kernel_lsp.analysis.silence import Silence, silence
from kernel_lsp.analysis.slicing import slice_target
from kernel_lsp.analysis.source import ParsedSource, collector_paused, parse, problem_of
from kernel_lsp.analysis.targets import (
    FileStructure,
    TargetDraft,
    find,
    launching,
    named,
    structure,
)
from kernel_lsp.errors import CaptureError
from kernel_lsp.records import (
    Analysis,
    Finding,
    ParseProblem,
    Program,
    Snapshot,
    Target,
    TargetKind,
)

__all__ = [
    "DEFECT",
    "RULES",
    "SCRIPT_RULES",
    "Rule",
    "ScriptRule",
    "analyze",
    "find_target",
    "fingerprint_of",
    "named_target",
    "page",
    "slice_program",
]

# Without one of these in the text nothing in it can be a target. Scanning 1 MB takes 1 ms, parsing
# it 150 ms.
_RELEVANT = re.compile(r"torch|triton|nn\.Module|kernel-lsp:")
_TOO_DEEP = ParseProblem(line=1, column=1, message="nested too deeply to analyze")
DEFECT = "a defect of kernel-lsp: please report it"


def analyze(snapshot: Snapshot) -> Analysis:
    """Everything that can be known about the text without running it."""
    if not _RELEVANT.search(snapshot.text):
        return Analysis()
    with collector_paused():
        return _analyze_text(snapshot.text)  # the tree must be gone when collections start again


def slice_program(snapshot: Snapshot, target: Target) -> Program:
    """The smallest program that defines the target.

    Raises CaptureError when the text no longer parses or no longer has the target.
    """
    file = parse(snapshot.text)
    if isinstance(file, ParseProblem):
        raise CaptureError(
            f"{snapshot.uri} does not parse: line {file.line}: {file.message}",
            "correct the syntax error",
        )
    try:
        program = slice_target(FileNames(file), target)
    except SyntaxError as error:
        raise CaptureError(
            f"{snapshot.uri} does not compile: {error}", "correct the syntax error"
        ) from error
    except RecursionError as error:
        raise CaptureError(
            f"{snapshot.uri} is nested too deeply", "split its longest expression"
        ) from error
    if program is None:
        raise CaptureError(
            f"{target.qualname} is no longer in {snapshot.uri}", "analyze the file again"
        )
    return program


def fingerprint_of(text: str, qualname: str) -> str | None:
    """The fingerprint of a class or function by name, target or not; None when it is gone or
    broken."""
    with collector_paused():
        return _fingerprint_of(text, qualname)


def find_target(analysis: Analysis, qualname: str) -> Target | None:
    """The target of that qualified name; None: the file has none."""
    return next((t for t in analysis.targets if t.qualname == qualname), None)


def named_target(snapshot: Snapshot, qualname: str) -> Target | None:
    """The target of that name, for a name that a recording or an earlier verdict gives: what its
    file does not show to be a module or to take tensors is found too."""
    found = find_target(analyze(snapshot), qualname)
    if found is not None:
        return found
    with collector_paused():
        return _named_target(snapshot.text, qualname)


def _named_target(text: str, qualname: str) -> Target | None:
    file = parse(text)
    if isinstance(file, ParseProblem):
        return None
    try:
        known, quiet = structure(file), silence(file)
        draft = named(known, qualname)
        is_off = quiet.whole_file or (
            draft is not None and "*" in quiet.for_target(file, draft.node)
        )
        return None if draft is None or is_off else _targets(file, known, [draft])[0]
    except (SyntaxError, RecursionError):
        return None


def _analyze_text(text: str) -> Analysis:
    file = parse(text)
    if isinstance(file, ParseProblem):
        return Analysis(problem=file)
    try:
        return _analyze(file)
    except RecursionError:
        # The parser accepts trees three times deeper than Python code can descend.
        return Analysis(problem=_TOO_DEEP)
    except SyntaxError as error:
        # From the symbol tables: names both parameter and global, and the like.
        return Analysis(problem=problem_of(error))


def _fingerprint_of(text: str, qualname: str) -> str | None:
    file = parse(text)
    if isinstance(file, ParseProblem):
        return None
    try:
        known = structure(file)
        node = dict(known.definitions).get(qualname)
        if node is None:
            return None
        kernel = known.jit_functions.get(qualname) is node
        return fingerprint(FileNames(file), node, launching(known, node.name) if kernel else ())
    except (SyntaxError, RecursionError):
        return None


def _analyze(file: ParsedSource) -> Analysis:
    quiet = silence(file)
    known = structure(file)
    failures: dict[str, str] = {}
    if quiet.whole_file:
        return Analysis()
    rules_off = {draft: quiet.for_target(file, draft.node) for draft in find(file, known)}
    found = [draft for draft, off in rules_off.items() if "*" not in off]
    hints = list(_script_findings(file, known, quiet, failures)) if is_script(file.text) else []
    for draft in found:
        hints += _findings(file, known, draft, quiet, rules_off[draft], failures)
    findings: dict[tuple[str, int, int], Finding] = {}
    for one in hints:
        # Two kernels share a helper, two modules a method: one hint is enough.
        findings.setdefault((one.rule, one.span.start, one.span.end), one)
    return Analysis(
        targets=_targets(file, known, found),
        findings=tuple(sorted(findings.values(), key=lambda one: (one.span.start, one.rule))),
        failures=tuple(failures.values()),
    )


def _targets(
    file: ParsedSource, known: FileStructure, drafts: Sequence[TargetDraft]
) -> tuple[Target, ...]:
    """With their fingerprints; a file without targets costs nothing."""
    if not drafts:
        return ()
    names = FileNames(file)
    return tuple(_target(file, known, names, draft) for draft in drafts)


def _target(
    file: ParsedSource, known: FileStructure, names: FileNames, found: TargetDraft
) -> Target:
    launchers = launching(known, found.node.name) if found.kind is TargetKind.TRITON_KERNEL else ()
    return Target(
        qualname=found.qualname,
        kind=found.kind,
        name_span=file.name_span(found.node),
        span=file.full_span(found.node),
        fingerprint=fingerprint(names, found.node, launchers),
        launchers=found.launchers,
    )


def _findings(
    file: ParsedSource,
    known: FileStructure,
    found: TargetDraft,
    quiet: Silence,
    off: frozenset[str],
    failures: dict[str, str],
) -> list[Finding]:
    """``failures``: receives a sentence by rule, for the first target that it crashed on."""
    site = RuleSite(file, known, found)
    findings: list[Finding] = []
    for rule in RULES:
        if found.kind not in rule.kinds or rule.id in off:
            continue
        hits = _hits(rule.id, found.qualname, partial(rule.check, site), failures)
        findings += [
            make_finding(file, rule, h, found.qualname)
            for h in hits
            if not quiet.on_line(_line(h.node), rule.id)
        ]
    return findings


def _script_findings(
    file: ParsedSource, known: FileStructure, quiet: Silence, failures: dict[str, str]
) -> list[Finding]:
    """What costs time in the steps of the program, wherever it stands in the file."""
    script = Script(file)
    off = [
        (node, rules) for _, node in known.definitions if (rules := quiet.for_target(file, node))
    ]
    findings: list[Finding] = []
    for rule in SCRIPT_RULES:
        if rule.id in quiet.file_rules:
            continue
        for found in _hits(rule.id, "the file", partial(rule.check, script), failures):
            line = _line(found.node)
            around = [
                rules for node, rules in off if node.lineno <= line <= (node.end_lineno or line)
            ]
            if not quiet.on_line(line, rule.id) and not any(
                rules & {"*", rule.id} for rules in around
            ):
                findings.append(make_finding(file, rule, found, None))
    return findings


def _hits(
    rule: str, where: str, check: Callable[[], Iterator[Hit]], failures: dict[str, str]
) -> list[Hit]:
    """What the rule finds; nothing, and a sentence in ``failures``, where it crashes."""
    try:
        return list(check())
    except RecursionError:  # one expression of a thousand terms must not silence the other rules
        return []
    except Exception as error:  # nor must a defect of ours in one of them
        why = " ".join(f"{type(error).__name__}: {error}".split())
        said = f"rule {rule} failed on {where} and is left out: {why} ({DEFECT})"
        failures.setdefault(rule, said)
        return []


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 1))
