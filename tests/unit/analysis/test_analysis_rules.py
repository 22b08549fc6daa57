"""Every rule against annotated source: `#! KL101` marks the line of a finding, all other lines
have none."""

import re
from pathlib import Path

import pytest

from kernel_lsp.analysis import RULES, SCRIPT_RULES, analyze
from kernel_lsp.records import Snapshot

CASES = Path(__file__).parents[2] / "cases"
DOCS = Path(__file__).parents[3] / "kernel_lsp" / "analysis" / "rules" / "docs"
ALL_RULES = (*RULES, *SCRIPT_RULES)
PAGE_SECTIONS = ("## Why", "## Example", "## When the hint is wrong", "## Silence it")


def check(text: str) -> None:
    """Findings are exactly the marks."""
    expected = {
        (number, rule)
        for number, line in enumerate(text.splitlines(), 1)
        if "#!" in line
        for rule in re.findall(r"KL\d+", line.split("#!")[1])
    }
    analysis = analyze(Snapshot(uri="case.py", text=text))
    assert analysis.problem is None
    found = {(text.count("\n", 0, f.span.start) + 1, f.rule) for f in analysis.findings}
    assert found == expected


@pytest.mark.parametrize("path", sorted(CASES.glob("KL*.py")), ids=lambda p: p.stem)
def test_findings_are_exactly_the_marked_lines(path: Path) -> None:
    check(path.read_text())


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda r: r.id)
def test_each_rule_has_a_case_that_fires_and_a_page(rule) -> None:
    case = CASES / f"{rule.id}_{rule.name.replace('-', '_')}.py"
    assert f"#! {rule.id}" in case.read_text()
    page = (DOCS / f"{rule.id}-{rule.name}.md").read_text()
    assert page.startswith(f"# {rule.id} {rule.name}\n")
    assert all(section in page for section in PAGE_SECTIONS)


def test_rule_ids_and_names_are_unique() -> None:
    assert (
        len({rule.id for rule in ALL_RULES})
        == len({rule.name for rule in ALL_RULES})
        == len(ALL_RULES)
    )


def test_every_case_file_belongs_to_a_rule() -> None:
    stems = {f"{rule.id}_{rule.name.replace('-', '_')}" for rule in ALL_RULES}
    assert {path.stem for path in CASES.glob("KL*.py")} == stems
