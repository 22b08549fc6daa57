"""How many findings of a family of rules are true, on packages that nobody wrote for them.

    pip download --no-deps -d DIR liger-kernel flag-gems   then unpack the wheels into FOLDER
    python benchmarks/findings.py FOLDER --show    the sample's findings with their code, to judge
    python benchmarks/findings.py FOLDER --verdicts benchmarks/results/findings-2026-11-21.json

--family KL2 (Triton, the default) or KL3 (training and inference scripts, less the packages' own
tests). Up to --per-rule findings of each rule are drawn, so that a rule with few counts as much as
one with many, and the rest of --size from what is left. Prints the table of verdicts and what has
none; --out writes both. Bar: 90 % true, in the sample and when each rule counts by its number of
findings."""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.reporting import write_record
from kernel_lsp.checker import check_paths
from kernel_lsp.records import Finding

FindingRow = dict[str, Any]
_BEFORE, _AFTER = 12, 6
_TESTS = frozenset({"test", "tests", "testing", "test_utils"})


def main() -> None:
    arguments = _arguments()
    rows = _findings(arguments.folder, arguments.family)
    sample = _sample(rows, arguments.seed, arguments.per_rule, arguments.size)
    if arguments.show:
        for row in sample:
            _print_code(arguments.folder, row)
    known = _verdicts(arguments.verdicts)
    judged = [row | known.get(_key(row), {}) for row in sample]
    table = _table(rows, judged)
    _print_table(table, judged)
    if arguments.out:
        body = {
            "schema_version": 1,
            "packages": _packages(arguments.folder),
            "seed": arguments.seed,
        }
        body |= {"num_findings": len(rows), "by_rule": table, "sample": judged}
        write_record(arguments.out, body)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the packages are unpacked")
    parser.add_argument("--family", choices=("KL2", "KL3"), default="KL2")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--size", type=int, default=150)
    parser.add_argument("--per-rule", type=int, default=8)
    parser.add_argument(
        "--show", action="store_true", help="print the code of each sampled finding"
    )
    parser.add_argument(
        "--verdicts", type=Path, help="JSON written by --out, with verdict and why filled in"
    )
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _findings(folder: Path, family: str) -> list[FindingRow]:
    """All findings of the family's rules, in the order of files and lines."""
    return [
        _row(path.relative_to(folder), finding)
        for path, analysis in check_paths([folder], jobs=1)
        for finding in analysis.findings
        if finding.rule.startswith(family)
        and not (family == "KL3" and _TESTS & set(path.relative_to(folder).parts))
    ]


def _row(path: Path, finding: Finding) -> FindingRow:
    place = {
        "file": path.as_posix(),
        "line": finding.data["line"],
        "column": finding.data["column"],
    }
    return {"rule": finding.rule} | place | {"target": finding.target, "message": finding.message}


def _sample(rows: list[FindingRow], seed: int, per_rule: int, size: int) -> list[FindingRow]:
    shuffled = random.Random(seed).sample(rows, len(rows))
    drawn: dict[str, list[FindingRow]] = defaultdict(list)
    rest: list[FindingRow] = []
    for row in shuffled:
        (drawn[row["rule"]] if len(drawn[row["rule"]]) < per_rule else rest).append(row)
    chosen = [row for group in drawn.values() for row in group]
    chosen += rest[: max(size - len(chosen), 0)]
    return sorted(chosen, key=_key)


def _key(row: FindingRow) -> tuple[str, str, int, int]:
    return row["rule"], row["file"], row["line"], row["column"]


def _verdicts(path: Path | None) -> dict[tuple[str, str, int, int], FindingRow]:
    """Place of a finding -> its verdict (true or false) and why."""
    if path is None:
        return {}
    rows = json.loads(path.read_text())["sample"]
    return {
        _key(row): {"verdict": row["verdict"], "why": row["why"]}
        for row in rows
        if "verdict" in row
    }


def _table(rows: list[FindingRow], judged: list[FindingRow]) -> dict[str, FindingRow]:
    counts: dict[str, FindingRow] = {}
    for row in rows:
        count = counts.setdefault(row["rule"], {"findings": 0, "judged": 0, "true": 0})
        count["findings"] += 1
    for row in judged:
        counts[row["rule"]]["judged"] += "verdict" in row
        counts[row["rule"]]["true"] += row.get("verdict") is True
    return dict(sorted(counts.items()))


def _print_table(table: dict[str, FindingRow], judged: list[FindingRow]) -> None:
    print(f"{'rule':8}{'findings':>10}{'judged':>8}{'true':>6}")
    for rule, count in table.items():
        print(f"{rule:8}{count['findings']:10}{count['judged']:8}{count['true']:6}")
    num_judged, num_true = _total(table.values(), "judged"), _total(table.values(), "true")
    print(f"{'all':8}{_total(table.values(), 'findings'):10}{num_judged:8}{num_true:6}")
    if num_judged:
        known = [c for c in table.values() if c["judged"]]
        expected = sum(c["findings"] * c["true"] / c["judged"] for c in known)
        share = expected / _total(known, "findings")
        print(
            f"true: {num_true / num_judged:.1%} of the sample, {share:.1%} with rules by number "
            f"of findings"
        )
    for row in judged:
        if "verdict" not in row:
            print(f"no verdict: {row['rule']} {row['file']}:{row['line']}")


def _total(counts: Iterable[FindingRow], name: str) -> int:
    return sum(count[name] for count in counts)


def _print_code(folder: Path, row: FindingRow) -> None:
    lines = (folder / row["file"]).read_text(errors="replace").splitlines()
    at = row["line"] - 1
    print(f"== {row['rule']} {row['file']}:{row['line']} {row['target']}\n   {row['message']}")
    for number in range(max(at - _BEFORE, 0), min(at + _AFTER, len(lines))):
        print(f"{'>' if number == at else ' '} {number + 1:5} {lines[number][:120]}")


def _packages(folder: Path) -> list[str]:
    """Names and versions, from the folders that a wheel brings along or that a source distribution
    is."""
    wheels = [p.name.removesuffix(".dist-info") for p in folder.glob("*.dist-info")]
    return sorted(name.replace("-", " ") for name in wheels or [p.name for p in folder.iterdir()])


if __name__ == "__main__":
    main()
