"""Accepted rewrites, judged again, as text, JSON and SARIF 2.1.0. Pure: records in, one string
out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kernel_lsp.plain import on_one_line, plain
from kernel_lsp.presenter.objects import to_versioned_json
from kernel_lsp.presenter.plurals import count
from kernel_lsp.presenter.reports import sarif_log, sarif_uri
from kernel_lsp.records import Acceptance, Guarded, Holding, Json

MARKS = {Holding.PAYS: "ok", Holding.RIGHT: "ok", Holding.SLOW: "no", Holding.WRONG: "no"}
RULES = {
    Holding.WRONG: ("KLG01", "accepted-rewrite-is-wrong", "error"),
    Holding.SLOW: ("KLG02", "accepted-rewrite-does-not-pay", "warning"),
    Holding.UNKNOWN: ("KLG03", "accepted-rewrite-not-judged", "note"),
    Holding.REVERTED: ("KLG04", "acceptance-of-nothing", "note"),
    Holding.GONE: ("KLG04", "acceptance-of-nothing", "note"),
}
"""What is worth a result, in SARIF's words."""
MAX_TITLE = 60
HELP = "https://github.com/kernel-lsp/kernel-lsp/blob/main/docs/how-to/guard.md"


def guarded_text(found: Sequence[Guarded], problems: Sequence[str]) -> str:
    """One line per rewrite, the patches that take back what failed, and a summary."""
    lines = [
        f"{MARKS.get(one.holding, '--')}  {one.holding.value:8}  {_place(one)}  {one.detail}"
        for one in found
    ]
    lines += [f"--  unreadable  {problem}" for problem in problems]
    lines = [on_one_line(line) for line in lines]
    for one in found:
        lines += ["", one.revert.rstrip("\n")] if one.revert else []
    counts = Counter(one.holding.value for one in found)
    words = [
        count(len(found), "accepted rewrite"),
        *(f"{n} {word}" for word, n in sorted(counts.items())),
    ]
    return "\n".join([*lines, ", ".join(words)]) + "\n"


def guarded_json(found: Sequence[Guarded], problems: Sequence[str]) -> str:
    """One object: per rewrite how it does, its evaluation, and the patch that takes it back."""
    rewrites = [
        {
            "path": one.acceptance.path,
            "line": one.line,
            "qualname": one.acceptance.qualname,
            "acceptance": one.file,
            "accepted": one.acceptance.accepted,
            "holding": one.holding,
            "detail": one.detail,
            "evaluation": one.evaluation,
            "revert": one.revert,
        }
        for one in found
    ]
    return to_versioned_json(rewrites=rewrites, problems=list(problems))


def guarded_sarif(found: Sequence[Guarded], problems: Sequence[str]) -> str:
    """A SARIF 2.1.0 log with one run: results for what does not pay, notifications for unreadable
    files."""
    entries = [one for one in found if one.holding in RULES]
    rules = sorted({RULES[one.holding] for one in entries})
    ids = [rule for rule, _, _ in rules]
    results = [_result(one, ids) for one in entries]
    notifications = [{"level": "warning", "message": {"text": problem}} for problem in problems]
    return sarif_log([_rule(*rule) for rule in rules], results, notifications)


def review_text(found: Sequence[Acceptance]) -> str:
    """Title and description of a change that others look at, in Markdown."""
    names = ", ".join(dict.fromkeys(one.qualname for one in found))
    title = f"Rewrite {names}" if len(names) <= MAX_TITLE else f"Rewrite {len(found)} targets"
    lines = [
        title,
        "",
        "Each rewrite was judged against the original (values, gradients and shapes, with a",
        "float64 oracle), and timed against each of these ways to run the original.",
        "",
        "| target | file | device | against | times as fast (interval) |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        verdict = one.evidence.evaluation
        for provider, gain in sorted(verdict.speedups.items()):
            cells = [
                one.qualname,
                one.path,
                verdict.device_name or verdict.device,
                provider,
                f"{gain.mid:.2f} ({gain.low:.2f} to {gain.high:.2f}, {gain.confidence:.0%})",
            ]
            lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    lines += [
        "",
        "The evidence lies in `.kernel-lsp/accepted`, the tests judge it again; so does",
        "`kernel-lsp guard`, which also asks whether it still pays.",
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return plain(text).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


def _place(one: Guarded) -> str:
    return f"{one.acceptance.path}:{one.line}: {one.acceptance.qualname}"


def _rule(identity: str, name: str, level: str) -> Json:
    return {"id": identity, "name": name, "defaultConfiguration": {"level": level}, "helpUri": HELP}


def _result(one: Guarded, rules: Sequence[str]) -> Json:
    rule, _, level = RULES[one.holding]
    path = one.file if one.holding is Holding.GONE else one.acceptance.path
    where = {"artifactLocation": {"uri": sarif_uri(path)}, "region": {"startLine": one.line}}
    return {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": level,
        "message": {"text": f"{one.acceptance.qualname}: {one.detail}"},
        "locations": [
            {
                "physicalLocation": where,
                "logicalLocations": [{"fullyQualifiedName": one.acceptance.qualname}],
            }
        ],
        "properties": {"holding": one.holding.value, "revert": one.revert},
    }
