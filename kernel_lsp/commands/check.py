"""``kernel-lsp check``: findings without running anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePath

import typer

from kernel_lsp import files, rulesets, workloads
from kernel_lsp.analysis import RULES, SCRIPT_RULES
from kernel_lsp.checker import (
    FoundFile,
    KnownFindings,
    baseline,
    check_files,
    check_text,
    discovery,
    fixing,
)
from kernel_lsp.commands import console
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.config import Settings
from kernel_lsp.errors import KernelLspError
from kernel_lsp.presenter import reports, services
from kernel_lsp.presenter.plurals import count
from kernel_lsp.records import Analysis, Progress

AnalyzedFiles = list[tuple[Path, Analysis]]
STDIN = Path("-")
_RULE_IDS = ("KL000", *(rule.id for rule in RULES), *(rule.id for rule in SCRIPT_RULES))


class CheckFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    GITLAB = "gitlab"
    JUNIT = "junit"


class Level(StrEnum):
    HINT = "hint"
    INFORMATION = "information"
    WARNING = "warning"
    ERROR = "error"
    NEVER = "never"


ORDER = list(Level)


@with_loudness
def check(
    paths: list[Path] = typer.Argument(
        ..., help="Files, notebooks and folders; - for standard input."
    ),
    format: CheckFormat = typer.Option(CheckFormat.TEXT, help="How findings are printed."),
    select: list[str] = typer.Option(
        [], help="Report these rules alone: ids or beginnings, with commas."
    ),
    ignore: list[str] = typer.Option(
        [], help="Do not report these rules, besides those of the settings."
    ),
    exclude: list[str] = typer.Option(
        [], help="Leave out: patterns as in .gitignore, with commas."
    ),
    gitignore: bool = typer.Option(True, help="Leave out what .gitignore files name."),
    force_exclude: bool = typer.Option(
        False, "--force-exclude", help="Named files too may be left out."
    ),
    fix: bool = typer.Option(False, "--fix", help="Write the fixes of findings that have one."),
    diff: bool = typer.Option(
        False, "--diff", help="Print what --fix would change, and write nothing."
    ),
    stdin_filename: Path | None = typer.Option(
        None,
        dir_okay=False,
        help="What standard input is called; its settings are those of that path.",
    ),
    baseline_file: Path | None = typer.Option(
        None, "--baseline", dir_okay=False, help="Report nothing that this file knows already."
    ),
    update_baseline: bool = typer.Option(
        False, "--update-baseline", help="Write today's findings into it instead."
    ),
    statistics: bool = typer.Option(False, "--statistics", help="Count the findings by rule."),
    fail_on: Level = typer.Option(
        Level.HINT, help="Exit with 1 when there is a finding at or above this level."
    ),
    exit_zero: bool = typer.Option(False, "--exit-zero", help="Exit with 0 whatever is found."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress and no summary."),
    cache: bool = typer.Option(True, help="Read unchanged files from the last run."),
    jobs: int | None = typer.Option(None, min=1, help="Processes; default: one per core."),
) -> None:
    """Find what could be faster or is wrong, without running any code.

    Settings: select, ignore, exclude, per-file-ignores and severity in [tool.kernel-lsp] of
    pyproject.toml; in the code, # kernel-lsp: ignore[KL101]. Exit code 0: nothing at or above
    --fail-on, 1: something, 2: no such file or option."""
    _refuse_mistakes(paths, select, ignore, update_baseline and baseline_file is None)
    flags = _Flags(_split(select), _split(ignore), _split(exclude), gitignore)
    projects = discovery.Projects(partial(_settings, flags))
    run = _CheckRun(projects, jobs=jobs, cached=cache, quiet=quiet, force_exclude=force_exclude)
    found = run.read_stdin(stdin_filename) if paths == [STDIN] else run.find(paths)
    if fix or diff:
        run.fix(found, write=fix)
        if diff:
            raise typer.Exit(int(run.num_fixed > 0 and not exit_zero))
    results = _with_shares(run.check(found))
    if baseline_file is not None:
        results = _read_baseline(baseline_file, results, update=update_baseline)
    console.write(_render(results, format, statistics=statistics, summary=not quiet))
    raise typer.Exit(0 if exit_zero else int(_fails(results, fail_on)))


@dataclass(frozen=True, slots=True)
class _Flags:
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    exclude: tuple[str, ...]
    gitignore: bool


class _CheckRun:
    """One call of the command: which files, and what is found in them."""

    def __init__(
        self,
        projects: discovery.Projects,
        *,
        jobs: int | None,
        cached: bool,
        quiet: bool,
        force_exclude: bool,
    ) -> None:
        self._projects = projects
        self._jobs, self._quiet, self._force_exclude = jobs, quiet, force_exclude
        self._cached = cached
        self._stdin: files.SourceFile | None = None
        self.num_fixed = 0

    def find(self, paths: Sequence[Path]) -> list[FoundFile]:
        """The files that these paths mean, as each project says."""
        return discovery.discover(paths, self._projects, force_exclude=self._force_exclude)

    def read_stdin(self, name: Path | None) -> list[FoundFile]:
        """Standard input as one file."""
        try:
            self._stdin = files.SourceFile(text=sys.stdin.buffer.read().decode(), encoding="utf-8")
        except UnicodeDecodeError as error:
            console.fail(
                KernelLspError(f"standard input is not UTF-8: {error}", "encode it as UTF-8")
            )
        path = name or Path("stdin.py")
        folder = path.absolute().parent
        one = FoundFile(path=path, root=self._projects.root(folder, folder))
        return [] if self._excludes(one) else [one]

    def check(self, found: Sequence[FoundFile]) -> AnalyzedFiles:
        """The findings that count."""
        if self._stdin is not None:
            return [
                (one.path, self._counting(one, check_text(one.path, self._stdin.text)))
                for one in found
            ]
        known = (
            KnownFindings(Path(self._projects.settings(Path.cwd()).data_dir) / "check")
            if self._cached
            else None
        )
        with console.progress("check") as report:

            def on_progress(done: int, total: int) -> None:
                if console.err.is_terminal and not self._quiet:
                    report(
                        Progress(
                            phase="check",
                            message=f"{done} of {total} files",
                            done=done,
                            total=total,
                        )
                    )

            made = check_files(found, jobs=self._jobs, on_progress=on_progress, known=known)
            results = [
                (path, self._counting(one, analysis))
                for one, (path, analysis) in zip(found, made, strict=True)
            ]
        if known is not None:
            known.save()
        return results

    def fix(self, found: Sequence[FoundFile], *, write: bool) -> None:
        """Mend what can be mended; with standard input, and without ``write``, the result is
        printed."""
        results = zip(found, self.check(found), strict=True)
        for one in [one for one, (_, analysis) in results if _is_mendable(analysis)]:
            check = partial(self._check_again, one)
            if self._stdin is None:
                fixed = fixing.fix_file(one.path, check, one.within)
            else:
                fixed = fixing.fix_text(one.path, self._stdin, check)
            if fixed is not None:
                self.num_fixed += fixed.count
                self._finish(one, fixed, write=write)
        if self._stdin is not None and write:
            console.write(self._stdin.text)
            raise typer.Exit
        if not self._quiet:
            console.err.print(
                f"{count(self.num_fixed, 'finding')} {'fixed' if write else 'can be fixed'}"
            )

    def _finish(self, one: FoundFile, fixed: fixing.Fixed, *, write: bool) -> None:
        if not write:
            console.write(fixed.difference(one.path))
        elif self._stdin is not None:
            self._stdin = replace(self._stdin, text=fixed.after)
        else:
            try:
                fixing.write(one.path, fixed)
            except KernelLspError as error:
                console.fail(error)

    def _check_again(self, one: FoundFile, text: str) -> Analysis:
        return self._counting(one, check_text(one.path, text))

    def _counting(self, one: FoundFile, analysis: Analysis) -> Analysis:
        return self._projects.rules(one.root).applied(analysis, PurePath(one.relative))

    def _excludes(self, one: FoundFile) -> bool:
        return self._force_exclude and self._projects.rules(one.root).excludes(
            PurePath(one.relative)
        )


def _is_mendable(analysis: Analysis) -> bool:
    return any("fix" in finding.data for finding in analysis.findings)


def _settings(flags: _Flags, root: Path) -> Settings:
    """Of one project; what flags say of rules counts in all."""
    found = console.settings(root)
    _say_unknown(root, found)
    return replace(
        found,
        select=flags.select or found.select,
        ignore=(*found.ignore, *flags.ignore),
        exclude=(*found.exclude, *flags.exclude),
        respect_gitignore=found.respect_gitignore and flags.gitignore,
    )


def _refuse_mistakes(
    paths: Sequence[Path], select: list[str], ignore: list[str], baseline_missing: bool
) -> None:
    named = [path for path in paths if path != STDIN]
    if absent := [str(path) for path in named if not path.exists()]:
        console.fail(
            KernelLspError(f"no such file or folder: {', '.join(absent)}", "check the spelling")
        )
    if STDIN in paths and len(paths) > 1:
        console.fail(
            KernelLspError("standard input cannot be checked beside others", "name - alone")
        )
    if mistyped := rulesets.find_unknown(_split([*select, *ignore]), _RULE_IDS):
        rules = "ids are KL101 to KL405; KL2 means all that begin so, ALL every one"
        console.fail(KernelLspError(f"no rule begins with {', '.join(mistyped)}", rules))
    if baseline_missing:
        console.fail(
            KernelLspError("--update-baseline needs a file", "name it with --baseline FILE")
        )


def _say_unknown(root: Path, found: Settings) -> None:
    in_files = [rule for entry in found.per_file_ignores for rule in entry.rules]
    named = [*found.select, *found.ignore, *in_files, *(rule for rule, _ in found.severity)]
    for name in rulesets.find_unknown(named, _RULE_IDS):
        console.err.print(f"[yellow]setting[/] {root}: no rule begins with {name!r}", markup=True)


def _read_baseline(file: Path, results: AnalyzedFiles, *, update: bool) -> AnalyzedFiles:
    """Without the findings that the baseline knows; with ``update`` it knows all of them from now
    on."""
    try:
        if update:
            written = baseline.write(file, results)
            console.err.print(f"{count(written, 'finding')} in {file}", markup=False)
            return [(path, replace(analysis, findings=())) for path, analysis in results]
        before = baseline.load(file)
    except OSError as error:
        console.fail(KernelLspError(f"{file} cannot be written: {error}", "name another file"))
    except KernelLspError as error:
        console.fail(error)
    return [(path, before.newer(path, analysis)) for path, analysis in results]


def _render(results: AnalyzedFiles, format: CheckFormat, *, statistics: bool, summary: bool) -> str:
    if statistics and format is CheckFormat.TEXT:
        return reports.findings_statistics(results)
    render: dict[CheckFormat, Callable[[Iterable[tuple[str | Path, Analysis]]], str]] = {
        CheckFormat.TEXT: partial(reports.findings_text, summary=summary),
        CheckFormat.JSON: reports.findings_json,
        CheckFormat.SARIF: reports.findings_sarif,
        CheckFormat.GITHUB: services.findings_github,
        CheckFormat.GITLAB: services.findings_gitlab,
        CheckFormat.JUNIT: services.findings_junit,
    }
    text = render[format](results).rstrip("\n")
    return f"{text}\n" if text else ""


def _fails(results: AnalyzedFiles, fail_on: Level) -> bool:
    found = [finding.severity for _, analysis in results for finding in analysis.findings]
    return any(ORDER.index(Level(severity)) >= ORDER.index(fail_on) for severity in found)


def _split(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for name in names for part in name.split(",") if part.strip())


def _with_shares(results: AnalyzedFiles) -> AnalyzedFiles:
    """Findings of targets that a recorded run has called know their share of its time."""
    folders = {path.parent for path, analysis in results if analysis.findings}
    roots = {folder: console.workspace_of(folder / "here") for folder in folders}
    return [
        (
            path,
            _add_shares(analysis, workloads.shares_in(path, roots[path.parent]))
            if analysis.findings
            else analysis,
        )
        for path, analysis in results
    ]


def _add_shares(analysis: Analysis, shares: Mapping[str, float]) -> Analysis:
    findings = [
        replace(finding, data={**finding.data, "share": shares[finding.target]})
        if finding.target is not None and finding.target in shares
        else finding
        for finding in analysis.findings
    ]
    return replace(analysis, findings=tuple(findings))
