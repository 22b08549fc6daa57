"""Findings that a project knows of already, in a file that is committed: only newer ones are
reported.

A finding is known again by file, rule, target and message, and by how many of these there are, so
that lines may move. The file is sorted, one finding a line: what came and went is a readable
difference."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kernel_lsp import foreign
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.records import SCHEMA_VERSION, Analysis, Finding

MAX_BYTES = 64 * 1024**2
_BaselineKey = tuple[str, str, str, str]
_FIELDS = ("path", "rule", "target", "message")


class Baseline:
    def __init__(self, file: Path, known: Counter[_BaselineKey]) -> None:
        self._folder = file.absolute().parent
        self._left = known

    def newer(self, path: Path, analysis: Analysis) -> Analysis:
        """The analysis without what is known; each known finding is taken once."""
        left = []
        for finding in analysis.findings:
            key = key_of(self._folder, path, finding)
            if self._left[key] > 0:
                self._left[key] -= 1
            else:
                left.append(finding)
        return replace(analysis, findings=tuple(left))


def load(file: Path) -> Baseline:
    """The findings that the file says are known. Raises KernelLspError when it cannot be read."""
    try:
        content = foreign.json_value(foreign.read_bytes(file, most=MAX_BYTES))
        known: Counter[_BaselineKey] = Counter()
        for entry in content["findings"]:
            path, rule, target, message = (str(entry[name]) for name in _FIELDS)
            known[path, rule, target, message] += int(entry.get("count", 1))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        remedy = f"write it with: kernel-lsp check PATH --baseline {file} --update-baseline"
        raise KernelLspError(f"the baseline {file} cannot be read: {error}", remedy) from error
    return Baseline(file, known)


def write(file: Path, results: Iterable[tuple[Path, Analysis]]) -> int:
    """Makes all these findings known from now on, and returns how many. Raises OSError."""
    folder = file.absolute().parent
    if not file.resolve().is_relative_to(folder.resolve()):  # to whatever a repository points at
        raise OSError(errno.ELOOP, "a link leads out of its folder", str(file))
    counts = Counter(
        key_of(folder, path, finding) for path, analysis in results for finding in analysis.findings
    )
    lines = [
        json.dumps({**dict(zip(_FIELDS, key, strict=True)), "count": count}, ensure_ascii=False)
        for key, count in sorted(counts.items())
    ]
    body = ",\n".join(f"  {line}" for line in lines)
    text = f'{{\n "schema_version": {SCHEMA_VERSION},\n "findings": [\n{body}\n ]\n}}\n'
    replace_file(file, text.encode(errors="backslashreplace"))  # a name of a file may be no UTF-8
    return counts.total()


def key_of(folder: Path, path: Path, finding: Finding) -> _BaselineKey:
    """The key by which a finding is known again; ``folder``: to which its path is relative."""
    path = path.absolute()
    place = path.relative_to(folder) if path.is_relative_to(folder) else path
    return place.as_posix(), finding.rule, finding.target or "", finding.message
