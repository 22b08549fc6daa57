"""Which findings count, and how severe each is: what settings say of rules, in the command line
and in editors.

Rules are named by id or by its beginning; where several fit, the longest counts. Standard library
only, but for patterns of paths. Not covered: comments in the code (analysis/silence.py) and what
a user dismissed (session/)."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

from kernel_lsp.config import SEVERITIES, Settings
from kernel_lsp.patterns import Patterns
from kernel_lsp.records import Analysis, Finding

ALL = "ALL"
"""For ``select`` and ``ignore``: every rule."""


class Ruleset:
    """The settings of one folder, as far as they are about rules. ``path`` is always relative to
    the folder."""

    def __init__(self, settings: Settings) -> None:
        self._selected = settings.select or (ALL,)
        self._ignored = settings.ignore
        self._disabled = frozenset(settings.disabled_rules)
        self._severity = settings.severity
        self._excluded = Patterns(settings.exclude)
        self._in_files = [
            (Patterns((entry.pattern,)), entry.rules) for entry in settings.per_file_ignores
        ]

    def excludes(self, path: PurePath, *, folder: bool = False) -> bool:
        """Whether the file, or the folder, is not to be checked at all."""
        return self._excluded.names(path / "anything" if folder else path)

    def reports(self, rule: str, path: PurePath | None = None) -> bool:
        """Whether what the rule finds in the file counts."""
        if rule in self._disabled or _fit(rule, self._selected) <= _fit(rule, self._ignored):
            return False
        return path is None or not any(
            _fit(rule, rules) >= 0 and patterns.names(path) for patterns, rules in self._in_files
        )

    def severity(self, rule: str, own: str) -> str:
        """How severe the rule's findings are by these settings. ``own``: what the rule says of
        itself."""
        fitting = [(_fit(rule, (name,)), word) for name, word in self._severity]
        length, word = max(fitting, default=(-1, own), key=lambda pair: pair[0])
        return word if length >= 0 else own

    def applied(self, analysis: Analysis, path: PurePath) -> Analysis:
        """The analysis with the findings that count, as severe as they count."""
        found = tuple(
            self._weighed(finding)
            for finding in analysis.findings
            if self.reports(finding.rule, path)
        )
        return analysis if found == analysis.findings else replace(analysis, findings=found)

    def _weighed(self, finding: Finding) -> Finding:
        severity = self.severity(finding.rule, finding.severity)
        return finding if severity == finding.severity else replace(finding, severity=severity)


@functools.lru_cache(maxsize=64)
def of(settings: Settings) -> Ruleset:
    """The rules as these settings want them."""
    return Ruleset(settings)


def rank(severity: str) -> int:
    """0 is the mildest."""
    return SEVERITIES.index(severity)


def find_unknown(names: Iterable[str], rules: Iterable[str]) -> list[str]:
    """The names that no rule's id begins with: probably mistyped."""
    ids = list(rules)
    return [name for name in names if name != ALL and not any(one.startswith(name) for one in ids)]


def _fit(rule: str, names: Iterable[str]) -> int:
    """The length of the longest name that the rule's id begins with; 0 for ALL, -1 where none
    fits."""
    lengths = [
        0 if name == ALL else len(name) for name in names if name == ALL or rule.startswith(name)
    ]
    return max(lengths, default=-1)
