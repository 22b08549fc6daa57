"""``kernel-lsp check``: findings without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import typer

from kernel_lsp import workloads
from kernel_lsp.checker import check_paths
from kernel_lsp.commands import console
from kernel_lsp.errors import KernelLspError
from kernel_lsp.presenter import reports
from kernel_lsp.records import Analysis, Progress


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


class Level(StrEnum):
    HINT = "hint"
    WARNING = "warning"
    ERROR = "error"
    NEVER = "never"


ORDER = [Level.HINT, Level.WARNING, Level.ERROR, Level.NEVER]


def check(
    paths: list[Path] = typer.Argument(..., help="Files and folders."),
    format: Format = typer.Option(Format.TEXT, help="How findings are printed."),
    fail_on: Level = typer.Option(
        Level.HINT, help="Exit with 1 when there is a finding at or above this level."
    ),
    jobs: int | None = typer.Option(None, min=1, help="Processes; default: one per core."),
) -> None:
    """Find what could be faster or is wrong, without running any code."""
    if absent := [str(path) for path in paths if not path.exists()]:
        console.fail(KernelLspError(f"no such file or folder: {', '.join(absent)}", "check the spelling"))
    with console.progress("check") as report:

        def on_progress(done: int, total: int) -> None:
            if console.err.is_terminal:
                report(Progress(phase="check", message=f"{done} of {total} files", done=done, total=total))

        results = _with_shares(list(check_paths(paths, jobs=jobs, on_progress=on_progress)))
    render = {
        Format.TEXT: reports.findings_text,
        Format.JSON: reports.findings_json,
        Format.SARIF: reports.findings_sarif,
    }
    console.write(render[format](results).rstrip("\n") + "\n")
    found = [finding.severity for _, analysis in results for finding in analysis.findings]
    raise typer.Exit(int(any(ORDER.index(Level(severity)) >= ORDER.index(fail_on) for severity in found)))


def _with_shares(results: list[tuple[Path, Analysis]]) -> list[tuple[Path, Analysis]]:
    """Findings of targets that a recorded run has called know their share of its time."""
    folders = {path.parent for path, analysis in results if analysis.findings}
    roots = {folder: console.workspace_of(folder / "here") for folder in folders}
    return [
        (
            path,
            _shared(analysis, workloads.shares_in(path, roots[path.parent]))
            if analysis.findings
            else analysis,
        )
        for path, analysis in results
    ]


def _shared(analysis: Analysis, shares: Mapping[str, float]) -> Analysis:
    findings = [
        replace(finding, data={**finding.data, "share": shares[finding.target]})
        if finding.target is not None and finding.target in shares
        else finding
        for finding in analysis.findings
    ]
    return replace(analysis, findings=tuple(findings))
