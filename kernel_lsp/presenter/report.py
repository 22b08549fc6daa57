"""The report as one HTML page that needs nothing else: no script, no network, no file beside it.
Pure.

Every plot stands over a table with the same numbers, so the page says the same where plots cannot
be made, to a screen reader and on paper. Where nothing was recorded yet, a section says what would
fill it. Not covered: where the numbers come from (commands/report.py)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

from kernel_lsp.plain import plain
from kernel_lsp.presenter import charts, lineages, pictures
from kernel_lsp.presenter.charts import BAD, CALM, GOOD, LINE, ChartSpan
from kernel_lsp.presenter.learned import uplift_text
from kernel_lsp.records import (
    Event,
    EventKind,
    Interval,
    Json,
    LearnedSkill,
    Lineage,
    LineageStep,
    Proposal,
    Standing,
    UsageStats,
)

FATES = {
    EventKind.OFFERED: LINE,
    EventKind.ACCEPTED: "#8250df",
    EventKind.KEPT: GOOD,
    EventKind.REVERTED: BAD,
    EventKind.DISMISSED: CALM,
}
"""What became of suggestions, in the order in which it happens."""
COLORS = {kind.value: color for kind, color in FATES.items()} | {"in use": GOOD, "retired": CALM}
MAX_SPANS = 40
"""Speedups that are drawn; the table has as many."""
MAX_PICTURES = 4
"""Offers whose calls are drawn."""
MAX_CURVES = 8
MAX_DAYS = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One version of the learned library."""

    number: int
    created: str
    action: str
    in_use: int
    retired: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFacts:
    """Everything that a report shows."""

    made: str
    """ISO 8601, UTC."""
    version: str
    events: tuple[Event, ...] = ()
    """Oldest first."""
    proposals: tuple[Proposal, ...] = ()
    """Those that a person was offered, oldest first."""
    learned: tuple[LearnedSkill, ...] = ()
    usage: tuple[UsageStats, ...] = ()
    library: tuple[Version, ...] = ()
    curves: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    """Training run -> lines of its curve."""
    lineages: tuple[Lineage, ...] = ()
    policies: Mapping[str, Json] = field(default_factory=dict)
    """Name -> what the trainer's evaluation of a policy against the rule has found."""


def page(facts: ReportFacts) -> str:
    """The whole document."""
    used = (_suggestions(facts), _speedups(facts), _library(facts))
    sections = (*used, _lineages(facts), _training(facts), _policy(facts))
    return str(
        _macro(
            "page",
            made=facts.made,
            version=facts.version,
            gained=_gained(facts),
            has_plots=charts.bars({"x": 1}, {}) is not None,
            sections=sections,
        )
    )


# --- sections -----------------------------------------------------------------------------


def _gained(facts: ReportFacts) -> str:
    """What rewrites that stayed in the code have brought, in one line."""
    by_fate = _count_by_fate(facts.events)
    kept = [p for p in facts.proposals if _fate(p.id, by_fate) == EventKind.KEPT.value]
    speedups = [proposal.evaluation.speedup for proposal in kept]
    logs = [math.log(found.mid) for found in speedups if found is not None]
    if not logs:
        return "No rewrite has been kept so far."
    mean = math.exp(sum(logs) / len(logs))
    rewrites = "1 rewrite stays" if len(logs) == 1 else f"{len(logs)} rewrites stay"
    return f"{rewrites} in your code: {mean:.2f}x as fast in the geometric mean."


def _suggestions(facts: ReportFacts) -> Markup:
    counted = _count_by_fate(facts.events)
    if not counted:
        return _section(
            "Suggestions",
            _note("Nothing was offered yet. Open a file in an editor and wait for a hint."),
        )
    counts = {kind.value: len(counted.get(kind, ())) for kind in FATES}
    offered = counts["offered"] or 1
    rows = [(name, str(count), f"{count / offered:.0%}") for name, count in counts.items()]
    plots = _plot(charts.bars(counts, COLORS), "What became of suggestions; each counts once")
    per_day = _per_day(facts.events)
    if len(per_day) > 1:
        plots += _plot(charts.days(per_day, COLORS), "The same by day (UTC)")
    return _section("Suggestions", plots + _table(("", "suggestions", "of the offered"), rows))


def _speedups(facts: ReportFacts) -> Markup:
    by_fate, rows, shown = _count_by_fate(facts.events), [], []
    timed = [(p, s) for p in facts.proposals if (s := p.evaluation.speedup) is not None]
    for proposal, found in timed[-MAX_SPANS:]:
        fate = _fate(proposal.id, by_fate)
        name = (
            f"{proposal.qualname} · {proposal.evaluation.device_name or proposal.evaluation.device}"
        )
        shown.append(
            ChartSpan(
                label=_short(name),
                low=found.low,
                mid=found.mid,
                high=found.high,
                color=_color(fate),
            )
        )
        rows.append((name, proposal.candidate.summary, _ratio(found), fate or "-"))
    if not rows:
        return _section("Speedups", _note("No offer was timed yet."))
    plot = _plot(
        charts.spans(shown, "over the best baseline"),
        "Offers with their intervals, colored by their fate",
    )
    head = ("target", "rewrite", "speedup", "became of it")
    last = [proposal for proposal, _ in timed[-MAX_PICTURES:]]
    calls = _plot(pictures.svg(last), "The last offers: times of a call, and where they go")
    return _section("Speedups", plot + _table(head, rows) + calls)


def _library(facts: ReportFacts) -> Markup:
    if not facts.learned:
        text = (
            "Nothing was learned yet: rewrites that are kept become drafts for `kernel-lsp skills "
            "verify`."
        )
        return _section("Learned skills", _note(text))
    plot = Markup()
    if facts.library:
        lines = {
            "in use": [v.in_use for v in facts.library],
            "retired": [v.retired for v in facts.library],
        }
        drawn = charts.steps(
            [version.created for version in facts.library], lines, COLORS, facts.made
        )
        plot = _plot(drawn, f"The library over its {len(facts.library)} versions")
    spans = [span for papers in facts.learned if (span := _uplift(papers)) is not None]
    if spans:
        plot += _plot(
            charts.spans(spans[:MAX_SPANS], "uplift of the first suggestion"),
            "Last verification of each",
        )
    head = ("skill", "standing", "learned on", "uplift (lower bound)", "at work", "why")
    rows = [_learned_row(papers, facts.usage) for papers in facts.learned]
    return _section("Learned skills", plot + _table(head, rows))


def _lineages(facts: ReportFacts) -> Markup:
    if not facts.lineages:
        text = "No kernel was walked back yet: `kernel-lsp skills lineage FILE::KERNEL` does it."
        return _section("Lineages", _note(text))
    drawn = Markup().join(_lineage(one) for one in facts.lineages)
    head = ("kernel", "step", "simplification", "the expert's form gains", "on")
    return _section("Lineages", drawn + _table(head, lineages.table_rows(facts.lineages)))


def _lineage(one: Lineage) -> Markup:
    steps: list[tuple[str, ChartSpan | None]] = [("expert", None)]
    steps += [(step.operator.replace("_", " "), _step_span(step)) for step in one.steps]
    places = {one.expert: 0} | {step.judgement.child: n for n, step in enumerate(one.steps, 1)}
    rejected: dict[int, list[str]] = {}
    for step in one.avoided:
        names = rejected.setdefault(places.get(step.judgement.parent, 0), [])
        names += [name] if (name := step.operator.replace("_", " ")) not in names else []
    caption = (
        f"{one.qualname} on {one.device_name or one.hardware}: from the expert's kernel to a "
        f"naive one"
    )
    return _plot(
        charts.lineage(steps, rejected), caption + ("" if one.measured else " (unmeasured)")
    )


def _step_span(step: LineageStep) -> ChartSpan | None:
    found = step.judgement.effect
    return (
        None
        if found is None
        else ChartSpan(label="", low=found.low, mid=found.mid, high=found.high, color=GOOD)
    )


def _training(facts: ReportFacts) -> Markup:
    if not facts.curves:
        return _section(
            "Training", _note("No training run was named; `--run FOLDER` shows its curves.")
        )
    parts = []
    for name, lines in facts.curves.items():
        groups = _group_curves(lines)
        if not groups:
            parts.append(_note(f"{name}: nothing was logged yet."))
            continue
        last = {key: value for line in lines for key, value in line.items() if key != "step"}
        rows = [(key, f"{value:.4g}") for key, value in sorted(last.items())]
        plot = _plot(charts.curves(groups), f"{name}, {len(lines)} steps logged")
        parts.append(plot + _macro("folded", "last values", _table(("name", "value"), rows)))
    return _section("Training", Markup().join(parts))


def _policy(facts: ReportFacts) -> Markup:
    if not facts.policies:
        text = "No comparison was named; `--policy FILE` shows what the trainer's evaluation wrote."
        return _section("Policy against rule", _note(text))
    spans, rows = [], []
    for name, found in facts.policies.items():
        for key, label, color in (
            ("first_over_best", f"{name}: policy", GOOD),
            ("rule_over_best", f"{name}: rule", CALM),
            ("first_over_rule", f"{name}: policy / rule", LINE),
        ):
            if isinstance(counted := found.get(key), dict):
                low, mid, high = (float(counted[end]) for end in ("low", "mean", "high"))
                spans.append(ChartSpan(label=label, low=low, mid=mid, high=high, color=color))
                rows.append(
                    (label, f"{mid:.3f}", f"{low:.3f} to {high:.3f}", str(found.get("tasks", "?")))
                )
    text = (
        "First suggestion over the best that search has found (1 is all of it), and policy "
        "over rule"
    )
    head = ("", "geometric mean", "95 % interval", "held-out tasks")
    return _section(
        "Policy against rule", _plot(charts.spans(spans, "ratio"), text) + _table(head, rows)
    )


# --- numbers ------------------------------------------------------------------------------


def _count_by_fate(events: Sequence[Event]) -> dict[EventKind, set[str]]:
    """Kind -> proposals that it happened to."""
    found: dict[EventKind, set[str]] = {}
    for event in events:
        kind = EventKind.KEPT if event.kind is EventKind.KEPT_COMMITTED else event.kind
        if kind in FATES:
            found.setdefault(kind, set()).add(event.proposal)
    return found


def _fate(proposal: str, by_fate: Mapping[EventKind, set[str]]) -> str:
    """The last stage that it came to."""
    order = (
        EventKind.REVERTED,
        EventKind.KEPT,
        EventKind.ACCEPTED,
        EventKind.DISMISSED,
        EventKind.OFFERED,
    )
    return next((kind.value for kind in order if proposal in by_fate.get(kind, ())), "")


def _color(fate: str) -> str:
    return COLORS.get(fate, LINE)


def _per_day(events: Sequence[Event]) -> dict[str, Counter[str]]:
    """Every day from the first to the last, at most the last `MAX_DAYS`."""
    counts: dict[str, Counter[str]] = {}
    for event in events:
        if event.kind in FATES:
            counts.setdefault(event.time[:10], Counter())[event.kind.value] += 1
    if not counts:
        return {}
    last = date.fromisoformat(max(counts))
    number = min(MAX_DAYS, (last - date.fromisoformat(min(counts))).days + 1)
    days = [(last - timedelta(days=back)).isoformat() for back in reversed(range(number))]
    return {day: counts.get(day, Counter()) for day in days}


def _uplift(papers: LearnedSkill) -> ChartSpan | None:
    last = next((one.uplift for one in reversed(papers.verifications) if one.uplift), None)
    if last is None:
        return None
    color = GOOD if papers.standing is Standing.VERIFIED else CALM
    low, mid, high = (math.exp(value) for value in (last.low, last.mean, last.high))
    return ChartSpan(label=_short(papers.name), low=low, mid=mid, high=high, color=color)


def _learned_row(papers: LearnedSkill, usage: Sequence[UsageStats]) -> tuple[str, ...]:
    last = next(reversed(papers.verifications), None)
    used = [f"{u.hardware}: offer in {u.wins} of {u.uses}" for u in usage if u.skill == papers.name]
    shown = uplift_text(last.uplift) if last else "-"
    where = papers.origin.device_name or papers.origin.hardware
    return (
        papers.name,
        papers.standing.value,
        where,
        shown,
        "; ".join(used) or "-",
        papers.reason or "-",
    )


def _group_curves(
    lines: Sequence[Mapping[str, float]],
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """``reward/policy`` is the line ``policy`` of the field ``reward``; at most `MAX_CURVES`
    fields."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for line in lines:
        for key, value in line.items():
            group, _, name = key.rpartition("/")
            if key != "step":
                found.setdefault(group or key, {}).setdefault(name, []).append(
                    (line["step"], value)
                )
    return dict(sorted(found.items(), key=lambda item: -len(item[1]))[:MAX_CURVES])


# --- HTML ---------------------------------------------------------------------------------


@cache
def _template() -> Template:
    """Whatever is shown is escaped, and plain before."""
    text = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, finalize=_plain).from_string(text)


def _plain(value: Any) -> Any:
    return plain(value) if type(value) is str else value


def _macro(name: str, *arguments: Any, **named: Any) -> Markup:
    made: Markup = getattr(_template().module, name)(*arguments, **named)
    return made


def _section(title: str, body: Markup) -> Markup:
    return _macro("section", title, body)


def _note(text: str) -> Markup:
    return _macro("note", text)


def _plot(svg: str | None, caption: str) -> Markup:
    """Nothing where it could not be drawn: the table says the same."""
    return Markup() if svg is None else _macro("plot", Markup(svg[len("<svg") :]), caption)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    return _macro("table", head, rows)


def _ratio(found: Interval) -> str:
    return f"{found.mid:.2f}x ({found.low:.2f} to {found.high:.2f})"


def _short(text: str, most: int = 34) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
