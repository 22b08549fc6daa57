"""Learned skills for a terminal and for scripts: drafts, papers, versions of the library. Pure.

Strings end without a line break; the command that prints them adds one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernel_lsp.presenter.objects import to_versioned_json
from kernel_lsp.records import LearnedSkill, Standing, TaskUplift, Uplift, UsageStats, Verification

COLUMNS = ("learned skill", "standing", "learned on", "uplift", "since (UTC)", "reason")
TASK_COLUMNS = (
    "task",
    "samples",
    "right with/without",
    "with",
    "without",
    "none learned",
    "uplift",
)


def papers_text(every: Sequence[LearnedSkill]) -> str:
    """One line per draft and learned skill."""
    if not every:
        return (
            "nothing was learned yet: rewrites that you keep become drafts (`kernel-lsp skills "
            "learn`)"
        )
    order = (Standing.VERIFIED, Standing.STAGED, Standing.RETIRED, Standing.REFUSED)
    ranked = sorted(every, key=lambda one: (order.index(one.standing), one.name))
    return _table([COLUMNS, *(_papers_row(one) for one in ranked)])


def paper_lines(papers: LearnedSkill, usage: Sequence[UsageStats] = ()) -> list[str]:
    """One skill's origin, verifications and use, as Markdown."""
    origin = papers.origin
    where = origin.device_name or origin.hardware
    speed = f", {origin.speedup.mid:.2f}x there" if origin.speedup else ""
    lines = [
        f"standing: {papers.standing.value} since {papers.since}"
        + (f" ({papers.reason})" if papers.reason else ""),
        f"learned from {origin.qualname} on {where} ({origin.event}{speed}), written by "
        f"{origin.writer}",
    ]
    lines += [f"at work: {usage_line(one)}" for one in usage if one.skill == papers.name]
    bullets = "\n".join(f"- {line}" for line in lines)
    return [bullets, *(verification_text(one) for one in papers.verifications)]


def usage_line(found: UsageStats) -> str:
    """``cuda:sm_90: the offer in 5 of 8 jobs; 1.12x of what was judged beside it, over 6``."""
    text = f"{found.hardware}: the offer in {found.wins} of {found.uses} jobs"
    if not found.pairs:
        return text
    return (
        f"{text}; {math.exp(found.uplift_sum / found.pairs):.2f}x of the best beside it, over "
        f"{found.pairs}"
    )


def verification_text(found: Verification) -> str:
    """The verdict, then what it rests on."""
    head = (
        f"{'accepted' if found.accepted else 'not accepted'} on "
        f"{found.device_name or found.hardware}"
    )
    lines = [f"{head}, {found.created}: {found.reason}"]
    if found.tasks:
        lines += ["", _table([TASK_COLUMNS, *(_task_row(task) for task in found.tasks)])]
    if found.credit:
        text = ", ".join(
            f"{name} {math.exp(loss):.3f}x" for name, loss in sorted(found.credit.items())
        )
        lines += ["", f"loss when left out: {text}"]
    if found.skipped:
        text = ", ".join(f"{count} {reason}" for reason, count in sorted(found.skipped.items()))
        lines.append(f"passed over: {text}")
    return "\n".join(lines)


def verified_json(results: Sequence[tuple[LearnedSkill, Verification]]) -> str:
    """Each verification with its skill's papers, as versioned JSON."""
    return to_versioned_json(
        verified=[{"papers": papers, "verification": found} for papers, found in results]
    )


def uplift_text(found: Uplift | None) -> str:
    """The uplift as ``1.21x (1.08-)``: the mean and the bound that counts."""
    return "-" if found is None else f"{math.exp(found.mean):.2f}x ({math.exp(found.low):.2f}-)"


def _papers_row(papers: LearnedSkill) -> tuple[str, ...]:
    last = next(reversed(papers.verifications), None)
    shown = uplift_text(last.uplift) if last else "-"
    learned = papers.origin.hardware
    return (
        papers.name,
        papers.standing.value,
        learned,
        shown,
        _moment(papers.since),
        papers.reason,
    )


def _task_row(task: TaskUplift) -> tuple[str, ...]:
    if not task.differs:
        return (task.task, "-", "-", "-", "-", "-", "the same candidate")
    gains = (
        f"{math.exp(gain):.2f}x" for gain in (task.gain_with, task.gain_without, task.gain_null)
    )
    rights = f"{task.right_with}/{task.right_without}"
    return (task.task, str(task.samples), rights, *gains, f"{math.exp(task.uplift):.3f}x")


def _moment(iso: str) -> str:
    return iso[:16].replace("T", " ")


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return "\n".join(lines)
