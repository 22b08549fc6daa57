"""Findings of many files as text, JSON and SARIF 2.1.0. Pure: records in, one string out.

Lines and columns count from 1 and in Unicode characters. Order is that of the input.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from kernel_lsp import __version__
from kernel_lsp.plain import on_one_line
from kernel_lsp.presenter.objects import to_versioned_json
from kernel_lsp.records import Analysis, Finding, Json, ParseProblem

_HOME = "https://github.com/kernel-lsp/kernel-lsp"
_SARIF_LEVELS = {"hint": "note", "information": "note", "warning": "warning", "error": "error"}


def findings_text(results: Iterable[tuple[str | Path, Analysis]], *, summary: bool = True) -> str:
    """``path:line:column: rule severity: message (name)``, one per line, and a summary.

    In a notebook ``path:cell N:line:column``, with the line in its cell.
    """
    lines: list[str] = []
    rules: Counter[str] = Counter()
    num_files = num_problems = num_failures = 0
    for path, analysis in results:
        num_files += 1
        if analysis.problem is not None:
            num_problems += 1
            lines.append(
                f"{path}:{analysis.problem.line}:{analysis.problem.column}: "
                f"{analysis.problem.message}"
            )
        num_failures += len(analysis.failures)
        lines += [f"{path}: {failure}" for failure in analysis.failures]
        for finding in analysis.findings:
            rules[finding.rule] += 1
            said = f"{finding.rule} {finding.severity}: {finding.message} ({finding.name})"
            text = f"{place(path, finding)}: {said}"
            share = finding.data.get("share")
            lines.append(text if share is None else f"{text} [{share:.0%} of the recorded time]")
    lines += [_summary(num_files, rules, num_problems, num_failures)] if summary else []
    return "".join(f"{on_one_line(line)}\n" for line in lines)


def findings_statistics(results: Iterable[tuple[str | Path, Analysis]]) -> str:
    """How many findings of each rule, the most frequent first: number, rule, severity, name."""
    found = [finding for _, analysis in results for finding in analysis.findings]
    counts = Counter((one.rule, one.severity, one.name) for one in found)
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return "".join(
        f"{count:6}  {rule}  {severity:11}  {name}\n" for (rule, severity, name), count in rows
    )


def place(path: str | Path, finding: Finding) -> str:
    """The place of a finding, for people: in a notebook with the cell that it is in."""
    cell = finding.data.get("cell")
    where = str(path) if cell is None else f"{path}:cell {cell}"
    return f"{where}:{finding.data['line']}:{finding.data['column']}"


def region(finding: Finding) -> tuple[int, int | None, int, int | None]:
    """(line, column, last line, its column) in the file, from 1: in the JSON of a notebook, lines
    alone."""
    data = finding.data
    if "cell" in data:
        return data["file_line"], None, data["end_file_line"], None
    return data["line"], data["column"], data["end_line"], data["end_column"]


def findings_json(results: Iterable[tuple[str | Path, Analysis]]) -> str:
    """One object: schema_version, and per file its findings, its problem and the rules that failed
    on it."""
    files = [
        {
            "path": str(path),
            "problem": _problem(analysis.problem),
            "failures": list(analysis.failures),
            "targets": [{"name": t.qualname, "kind": t.kind.value} for t in analysis.targets],
            "findings": [_finding(finding) for finding in analysis.findings],
        }
        for path, analysis in results
    ]
    return to_versioned_json(version=__version__, files=files)


def findings_sarif(results: Iterable[tuple[str | Path, Analysis]]) -> str:
    """A SARIF 2.1.0 log with one run. Files that could not be checked and rules that failed are
    notifications of the tool."""
    known: dict[str, Json] = {}
    found: list[Json] = []
    notifications: list[Json] = []
    for path, analysis in results:
        for finding in analysis.findings:
            known.setdefault(finding.rule, _sarif_rule(finding))
            found.append(_sarif_result(path, finding, list(known).index(finding.rule)))
        if analysis.problem is not None:
            notifications.append(_sarif_notification(path, analysis.problem))
        for failure in analysis.failures:
            place = ParseProblem(line=1, column=1, message=failure)
            notifications.append({**_sarif_notification(path, place), "level": "error"})
    return sarif_log(list(known.values()), found, notifications)


def sarif_log(rules: list[Json], results: list[Json], notifications: list[Json]) -> str:
    """One run of this tool, as SARIF 2.1.0."""
    driver = {"name": "kernel-lsp", "version": __version__, "informationUri": _HOME, "rules": rules}
    run: Json = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "results": results,
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(log, indent=2)


def _summary(num_files: int, rules: Counter[str], num_problems: int, num_failures: int) -> str:
    total = sum(rules.values())
    parts = [f"{total} finding{'s' * (total != 1)} in {num_files} file{'s' * (num_files != 1)}"]
    parts += [f"{rule} {count}" for rule, count in sorted(rules.items())]
    if num_problems:
        parts.append(f"{num_problems} could not be checked")
    if num_failures:
        parts.append(f"{num_failures} rule{'s' * (num_failures != 1)} failed")
    return ", ".join(parts)


def _problem(problem: ParseProblem | None) -> Json | None:
    if problem is None:
        return None
    return {"line": problem.line, "column": problem.column, "message": problem.message}


def _finding(finding: Finding) -> Json:
    return {
        "rule": finding.rule,
        "name": finding.name,
        "severity": finding.severity,
        "target": finding.target,
        "message": finding.message,
        **finding.data,
    }


def _sarif_rule(finding: Finding) -> Json:
    pages = f"{_HOME}/blob/main/kernel_lsp/analysis/rules/docs"
    return {
        "id": finding.rule,
        "name": finding.name,
        "defaultConfiguration": {"level": _SARIF_LEVELS[finding.severity]},
        "helpUri": f"{pages}/{finding.rule}-{finding.name}.md",
    }


def _sarif_result(path: str | Path, finding: Finding, rule_index: int) -> Json:
    line, column, end_line, end_column = region(finding)
    where = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
    share = finding.data.get("share")
    where = {key: value for key, value in where.items() if value is not None}
    return {
        **({} if share is None else {"rank": 100 * share}),
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": _SARIF_LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": sarif_uri(path)}, "region": where},
                **_sarif_target(finding),
            }
        ],
    }


def _sarif_target(finding: Finding) -> Json:
    return (
        {}
        if finding.target is None
        else {"logicalLocations": [{"fullyQualifiedName": finding.target}]}
    )


def _sarif_notification(path: str | Path, problem: ParseProblem) -> Json:
    return {
        "level": "warning",
        "message": {"text": problem.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": sarif_uri(path)},
                    "region": {"startLine": problem.line, "startColumn": problem.column},
                }
            }
        ],
    }


def sarif_uri(path: str | Path) -> str:
    """The path as SARIF's ``uri``: absolute ones as file URLs, others percent-encoded."""
    path = Path(path)
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))
