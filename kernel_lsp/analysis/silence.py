"""``# kernel-lsp: off KL101`` or ``ignore[KL101]``: what the author does not want to hear about.

In the comment lines above a target, or on its decorator or name line: the target. Before the
first statement (a docstring aside), or as ``ignore-file`` wherever it stands: the file. On the
line of a finding: that finding. Without rules everything is off, and a target that is off is no
target at all."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from kernel_lsp import parsing
from kernel_lsp.analysis.source import DefinitionNode, ParsedSource, walk

_MARK = "kernel-lsp:"
_OFF = re.compile(
    r"#\s*kernel-lsp:\s*(?:off|ignore(?P<file>-file)?)(?![\w-])"
    r"(?P<rules>\s*\[\s*KL\d+(?:[\s,]+KL\d+)*\s*\]|(?:[\s,]*KL\d+)*)\s*(?:$|[#—(-])"
)
_RULE = re.compile(r"KL\d+")
ALL = frozenset({"*"})


@dataclass(frozen=True, slots=True)
class Silence:
    """Line (from 1) -> rules that are off there; ``ALL`` stands for every rule."""

    lines: dict[int, frozenset[str]]
    file_rules: frozenset[str]

    @property
    def whole_file(self) -> bool:
        """Whether all rules are off in the whole file."""
        return "*" in self.file_rules

    def for_target(self, file: ParsedSource, node: DefinitionNode) -> frozenset[str]:
        """Rules that are off for the whole target."""
        if not self.lines:
            return self.file_rules
        first = file.first_line(node)
        rules = set(self.file_rules)
        for line in range(first, node.lineno + 1):
            rules |= self.lines.get(line, frozenset())
        line = first - 1
        while line >= 1 and file.line_text(line).lstrip().startswith("#"):
            rules |= self.lines.get(line, frozenset())
            line -= 1
        return frozenset(rules)

    def on_line(self, line: int, rule: str) -> bool:
        """Whether the rule is off on that line (from 1)."""
        return bool(self.lines.get(line, frozenset()) & {"*", rule})


def silence(file: ParsedSource) -> Silence:
    """All off comments of a file. Free when the file has none."""
    if _MARK not in file.text:
        return Silence({}, frozenset())
    found = {
        number: match
        for number in range(1, file.num_lines + 1)
        if (match := _OFF.search(file.line_text(number)))
    }
    if found:
        strings = _lines_inside_strings(file.tree)
        found = {number: match for number, match in found.items() if number not in strings}
    lines = {
        number: frozenset(_RULE.findall(match["rules"])) or ALL for number, match in found.items()
    }
    first = _first_statement_line(file.tree)
    of_file = [rules for number, rules in lines.items() if number < first or found[number]["file"]]
    return Silence(lines, frozenset().union(*of_file))


def _first_statement_line(tree: ast.Module) -> float:
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    if not body:
        return float("inf")
    decorators = body[0].decorator_list if isinstance(body[0], DefinitionNode) else []
    return decorators[0].lineno if decorators else body[0].lineno


def _lines_inside_strings(tree: ast.Module) -> set[int]:
    """Lines that a string literal covers up to their end, so that a ``#`` there is no comment."""
    found: set[int] = set()
    for node in walk(tree):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            found.update(range(node.lineno, node.end_lineno or node.lineno))
    return found


def ignoring(text: str, offset: int, rule: str) -> tuple[int, str] | None:
    """Where to insert what, so that a rule is off on the line of ``offset``; None where a comment
    there would be no comment (inside a string, before a continuation)."""
    start = text.rfind("\n", 0, offset) + 1
    end = min((at for at in (text.find("\n", offset), len(text)) if at >= 0), default=len(text))
    line = text[start:end].rstrip("\r")
    known = _OFF.search(line)
    if known is not None and known["rules"].strip():
        place = start + known.start("rules") + len(known["rules"].rstrip().removesuffix("]"))
        new = f", {rule}"
    elif known is not None:
        return None  # everything is off already
    else:
        place, new = start + len(line.rstrip()), f"  # {_MARK} ignore[{rule}]"
    changed = text[:place] + new + text[place:]
    try:
        same = ast.dump(parsing.parse_text(text)) == ast.dump(parsing.parse_text(changed))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return (place, new) if same else None
