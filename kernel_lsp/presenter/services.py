"""Findings as services show them beside the code: GitHub's annotations, GitLab's code quality,
JUnit.

Pure: records in, one string out. Lines are those of the file, also in a notebook. SARIF is in
reports.py."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from kernel_lsp.presenter.reports import place, region
from kernel_lsp.records import Analysis, Finding, Json

_GITHUB = {"hint": "notice", "information": "notice", "warning": "warning", "error": "error"}
_GITLAB = {"hint": "info", "information": "info", "warning": "major", "error": "critical"}
_PROBLEM = "KLX"
"""In place of a rule: what could not be checked."""

AnalyzedPaths = Iterable[tuple[str | Path, Analysis]]


def findings_github(results: AnalyzedPaths) -> str:
    """Workflow commands of GitHub Actions, one finding a line."""
    lines = []
    for path, analysis in results:
        for finding in analysis.findings:
            line, column, end_line, end_column = region(finding)
            where = {"file": str(path), "line": line, "endLine": end_line}
            where |= {} if column is None else {"col": column, "endColumn": end_column}
            title = f"{finding.rule} {finding.name}"
            said = (
                f"{place(path, finding)}: {finding.message}"
                if "cell" in finding.data
                else finding.message
            )
            lines.append(_command(_GITHUB[finding.severity], {**where, "title": title}, said))
        if analysis.problem is not None:
            where = {"file": str(path), "line": analysis.problem.line, "title": "not checked"}
            lines.append(_command("warning", where, analysis.problem.message))
    return "".join(f"{line}\n" for line in lines)


def findings_gitlab(results: AnalyzedPaths) -> str:
    """A Code Quality report: a list of issues, each with a fingerprint that stays while lines
    move."""
    issues: list[Json] = []
    seen: Counter[str] = Counter()
    for path, analysis in results:
        for finding in analysis.findings:
            line, _, end_line, _ = region(finding)
            named = "\0".join((str(path), finding.rule, finding.target or "", finding.message))
            seen[named] += 1
            issues.append(
                {
                    "description": f"{finding.rule}: {finding.message}",
                    "check_name": f"{finding.rule}-{finding.name}",
                    "fingerprint": _fingerprint(f"{named}\0{seen[named]}"),
                    "severity": _GITLAB[finding.severity],
                    "location": {
                        "path": Path(path).as_posix(),
                        "lines": {"begin": line, "end": end_line},
                    },
                }
            )
    return json.dumps(issues, indent=2)


def _fingerprint(text: str) -> str:
    """Of a text that may hold the name of a file that is no UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def findings_junit(results: AnalyzedPaths) -> str:
    """A suite with one case per file; each finding, and each file that could not be checked, is a
    failure."""
    cases, failures, total = [], 0, 0
    for path, analysis in results:
        total += 1
        entries = [
            _failure(finding.rule, place(path, finding), finding) for finding in analysis.findings
        ]
        if analysis.problem is not None:
            entries.append(
                _failure(_PROBLEM, f"{path}:{analysis.problem.line}", analysis.problem.message)
            )
        failures += bool(entries)
        name = quoteattr(str(path))
        body = "".join(f"\n      {one}" for one in entries)
        cases.append(f"    <testcase name={name} classname={name}>{body}\n    </testcase>")
    counts = f'tests="{total}" failures="{failures}"'
    suite = f'  <testsuite name="kernel-lsp check" {counts}>'
    inside = "\n".join([suite, *cases, "  </testsuite>"])
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites {counts}>\n{inside}\n</testsuites>\n'
    )


def _failure(rule: str, where: str, what: Finding | str) -> str:
    message = what if isinstance(what, str) else f"{what.severity}: {what.message} ({what.name})"
    return f"<failure type={quoteattr(rule)} message={quoteattr(message)}>{escape(where)}</failure>"


def _command(level: str, where: Json, message: str) -> str:
    properties = ",".join(f"{name}={_property(str(value))}" for name, value in where.items())
    return f"::{level} {properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
