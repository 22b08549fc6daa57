"""One judged proposal as a person reads it: a title, one line, a table of evidence, a full report,
a diff.

A speedup is never written without its interval, its device and its baseline. What was not measured
is left out or called unknown. Not covered: several proposals at once (reports) and LSP types
(lsp.py)."""

from __future__ import annotations

import contextlib
import difflib
import shlex
from collections.abc import Iterable
from datetime import datetime

from kernel_lsp import fences
from kernel_lsp.plain import inert
from kernel_lsp.positions import split_lines
from kernel_lsp.records import (
    QUIET_REMEDY,
    Card,
    Check,
    Evaluation,
    Interval,
    Numerics,
    Profile,
    Proposal,
    Provenance,
    Timing,
    Verdict,
    Workload,
)

MAX_HOVER_LINES = 16


def make_card(proposal: Proposal, before: str, after: str | None, path: str = "file.py") -> Card:
    """What a user is shown of a proposal. ``before`` and ``after`` are whole documents; ``after``
    None means that the edit no longer fits."""
    diff = unified_diff(before, after, path) if after is not None else ""
    return Card(
        title=title(proposal),
        headline=headline(proposal),
        evidence=evidence(proposal),
        report=_report(proposal, diff),
        diff=diff,
    )


def title(proposal: Proposal) -> str:
    """The title of a code action, such as ``Rewrite Model: fuse …, 1.83x (1.79–1.87) on H100``."""
    summary = proposal.candidate.summary or ", ".join(s.skill for s in proposal.candidate.steps)
    speedup = proposal.evaluation.speedup
    if proposal.verdict is not Verdict.FASTER or speedup is None:
        return f"Rewrite {proposal.qualname}: {summary}"
    return (
        f"Rewrite {proposal.qualname}: {summary}, {spread(speedup)} on "
        f"{device(proposal.evaluation)}"
    )


def headline(proposal: Proposal) -> str:
    """Verdict, speedup, interval, device: one line."""
    evaluation, speedup = proposal.evaluation, proposal.evaluation.speedup
    if proposal.verdict is Verdict.FASTER and speedup is not None:
        sure = f"{speedup.confidence:.0%} CI"
        return (
            f"verified {spread(speedup)} vs {_baseline(evaluation)} on {device(evaluation)} "
            f"({sure})"
        )
    if proposal.verdict is Verdict.CORRECT:
        if speedup is None:
            return f"right; speed unknown (checked by {evaluation.device})"
        if evaluation.disturbed:
            return not_sure(evaluation)
        if (compiled := evaluation.beaten_by_compile) is not None:
            return (
                f"right and {spread(speedup)} vs {_baseline(evaluation)} on {device(evaluation)}, "
                f"but {spread(compiled)} vs torch.compile, which is faster still"
            )
        return f"right, but not surely faster on {device(evaluation)}: {spread(speedup)}"
    words = {Verdict.REJECTED: "rejected", Verdict.UNKNOWN: "could not be judged"}
    return f"{words[proposal.verdict]}: {evaluation.detail or evaluation.status.value}"


def not_sure(evaluation: Evaluation) -> str:
    """The third answer, its reason and its remedy, of a right candidate that was timed."""
    speedup = evaluation.speedup
    seen = f" ({spread(speedup)})" if speedup is not None else ""
    return (
        f"right; not sure whether it is faster on {device(evaluation)}{seen}: "
        f"{evaluation.unsure}; {QUIET_REMEDY}"
    )


def evidence(proposal: Proposal) -> str:
    """Markdown for a hover: at most 16 lines, the widest facts first."""
    rows = [(name, value) for name, value in _rows(proposal) if value]
    lines = [f"**{proposal.qualname}**: {headline(proposal)}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in rows]
    return "\n".join(lines[:MAX_HOVER_LINES])


def spread(speedup: Interval) -> str:
    """``1.83x (1.79–1.87)``"""
    return f"{speedup.mid:.2f}x ({speedup.low:.2f}–{speedup.high:.2f})"


def device(evaluation: Evaluation) -> str:
    """The device's name as its driver says it, else its kind."""
    return evaluation.device_name or evaluation.device


def duration(milliseconds: float) -> str:
    """The time with the unit that keeps three digits readable."""
    if milliseconds < 1.0:
        return f"{milliseconds * 1000:.3g} µs"
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def median_ms(evaluation: Evaluation, provider: str) -> float | None:
    """Median milliseconds of that provider's calls; None: it was not timed."""
    return next((t.median_ms for t in evaluation.timings if t.provider == provider), None)


def describe_workload(workload: Workload) -> str:
    """``x f32[128, 4096]``-like, or where the inputs come from."""
    if workload.inputs is None:
        return f"{workload.name} (from the file's get_inputs())"
    parts = []
    for spec in workload.inputs:
        shape = "" if spec.shape is None else f"[{', '.join(map(str, spec.shape))}]"
        value = f"{spec.dtype}{shape}" if spec.dtype is not None else repr(spec.value)
        parts.append(f"{spec.name} {value}" if spec.name else value)
    return ", ".join(parts)


def unified_diff(before: str, after: str, path: str) -> str:
    """The change as a unified diff that `git apply` reads, "\\ No newline" included; "" where
    nothing changes."""
    lines = difflib.unified_diff(split_lines(before), split_lines(after), f"a/{path}", f"b/{path}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _rows(proposal: Proposal) -> Iterable[tuple[str, str]]:
    evaluation = proposal.evaluation
    yield "workload", describe_workload(proposal.workload)
    yield "before → after", _times(evaluation)
    yield "speedup", "; ".join(f"{spread(i)} vs {name}" for name, i in evaluation.speedups.items())
    yield "numerics", _numerics(evaluation.numerics)
    yield "reps", _reps(evaluation.timings)
    yield "device", _device_line(evaluation)
    yield "kernels", _kernels(evaluation)
    yield "time goes to", _profile_line(evaluation)
    yield "versions", _versions(evaluation)
    yield "proposed by", proposed_by(proposal.candidate.provenance)
    yield "can differ", "; ".join(proposal.candidate.caveats)
    yield "measured", f"{_moment(proposal.created)} · fingerprint {proposal.fingerprint[:12]}"


def _moment(created: str) -> str:
    """To the second; what was kept is finer. As it is where it is no time."""
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(created).isoformat(timespec="seconds")
    return created


def proposed_by(made: Provenance) -> str:
    """``openai:Qwen3-8B@0.32, turn 2 (refine) from 3f2a9c04: fused-norm; advised by
    flash-attention``"""
    turn = f", turn {made.turn}" if made.turn else ""
    move = f" ({made.move})" if made.search else ""
    parent = f" from {made.parent[:8]}" if made.parent else ""
    skills = (
        f": {', '.join(made.skills)}" if made.skills else ": written by hand" if made.search else ""
    )
    advice = f"; advised by {', '.join(made.advice)}" if made.advice else ""
    search = f"; search {made.search}" if made.search else ""
    return f"{made.proposer}{turn}{move}{parent}{skills}{advice}{search}"


def _times(evaluation: Evaluation) -> str:
    after = median_ms(evaluation, "candidate")
    if after is None:
        return ""
    before = [
        f"{t.provider} {duration(t.median_ms)}"
        for t in evaluation.timings
        if t.provider != "candidate"
    ]
    return f"{', '.join(before)} → {duration(after)} (medians)" if before else duration(after)


def _numerics(numerics: Numerics | None) -> str:
    if numerics is None:
        return ""
    return (
        f"error {numerics.candidate_error:.1e}, original {numerics.reference_error:.1e}, "
        f"allowed {numerics.tolerance:.1e}; {numerics.num_trials} trials"
    )


def _reps(timings: tuple[Timing, ...]) -> str:
    if not timings:
        return ""
    cold = "cold" if all(t.cold_cache for t in timings) else "warm"
    return f"{min(t.num_reps for t in timings)} per provider, {cold} cache"


def _device_line(evaluation: Evaluation) -> str:
    keys = ("sm_clock_mhz", "clock_mhz", "driver", "threads", "sandbox")
    extra = [
        f"{key} {evaluation.environment[key]}" for key in keys if evaluation.environment.get(key)
    ]
    return " · ".join([device(evaluation), *extra])


def _kernels(evaluation: Evaluation) -> str:
    return "; ".join(
        f"{k.name} ({k.arch}): {_format_known(k.registers)} registers, "
        f"{_format_known(k.spill_bytes)} B spilled"
        for k in evaluation.kernels[:2]
    )


def _profile_line(evaluation: Evaluation) -> str:
    if evaluation.profile is None:
        return ""
    own = f"; {evaluation.coverage:.0%} in its own kernels" if evaluation.coverage else ""
    return f"{evaluation.profile.longest()}{own}"


def _versions(evaluation: Evaluation) -> str:
    keys = ("python", "torch", "triton", "cuda")
    return " · ".join(
        f"{k} {evaluation.environment[k]}" for k in keys if evaluation.environment.get(k)
    )


def _baseline(evaluation: Evaluation) -> str:
    return evaluation.baseline or ""


MISFIT = "The file has changed; the edit no longer fits."


def _report(proposal: Proposal, diff: str) -> str:
    """Markdown with everything that is known."""
    evaluation = proposal.evaluation
    rows = [f"| {name} | {_cell(value)} |" for name, value in _rows(proposal) if value]
    sections = {
        "Evidence": ["\n".join(["| | |", "|---|---|", *rows])],
        "Times": [_timing_table(evaluation.timings)] if evaluation.timings else [],
        "Where the time goes": [*map(_profile_table, evaluation.profiles)],
        **_lists(proposal),
        "Diff": [fences.fenced(diff, "diff") if diff else MISFIT],
    }
    if proposal.evidence:
        command = f"kernel-lsp verify --evidence {shlex.quote(proposal.evidence)}"
        sections["Repeat it"] = [
            f"Every trial and every sample is in one document:\n\n```sh\n{command}\n```"
        ]
    known = [f"- {key}: {value}" for key, value in sorted(evaluation.environment.items())]
    sections["Environment"] = ["\n".join(known or ["unknown"])]
    parts = [f"# {title(proposal)}", headline(proposal)]
    for heading, texts in sections.items():
        if texts:
            parts += [f"## {heading}", *texts]
    return inert("\n\n".join(parts) + "\n")


def _lists(proposal: Proposal) -> dict[str, list[str]]:
    """Heading -> its list as one text; nothing where there is nothing to list."""
    evaluation, candidate = proposal.evaluation, proposal.candidate
    inputs = evaluation.numerics.distributions if evaluation.numerics is not None else ()
    lists: dict[str, list[str]] = {
        "Checks": [_check_line(check) for check in evaluation.checks],
        "Why it may be rewritten": [
            f"- {'✓' if proof.holds else '✗'} {proof.claim}: {proof.because}"
            for proof in candidate.proofs
        ],
        "What can differ": [f"- {caveat}" for caveat in candidate.caveats],
        "Inputs": [", ".join(inputs)] if inputs else [],
        "Sizes that were compared (the first was timed)": [
            f"- {', '.join(shapes)}" for shapes in evaluation.shapes
        ],
        "Peak memory": [
            f"- {name}: {size / 2**20:.1f} MiB" for name, size in evaluation.peak_bytes.items()
        ],
    }
    return {heading: ["\n".join(lines)] if lines else [] for heading, lines in lists.items()}


def _timing_table(timings: tuple[Timing, ...]) -> str:
    lines = ["| provider | p20 | median | p80 | reps | cache |", "|---|---|---|---|---|---|"]
    for t in timings:
        cells = (
            t.provider,
            duration(t.p20_ms),
            duration(t.median_ms),
            duration(t.p80_ms),
            str(t.num_reps),
        )
        lines.append(f"| {' | '.join(cells)} | {'cold' if t.cold_cache else 'warm'} |")
    return "\n".join(lines)


def _profile_table(profile: Profile) -> str:
    """Kernels of one call; on a CPU operators, without the time of those that they call."""
    gaps = (
        f", {duration(profile.gaps_us / 1000)} between kernels"
        if profile.gaps_us is not None
        else ""
    )
    lines = [
        f"**{profile.provider}**: {duration(profile.us / 1000)}{gaps} (seen by a profiler, which "
        f"makes calls longer)",
        "",
        "| kernel | calls | time | share |",
        "|---|---|---|---|",
    ]
    for row in profile.kernels:
        share = f"{row.us / profile.us:.0%}" if profile.us else ""
        name = f"{_cell(row.name)}{' (own)' * row.own}"
        lines.append(f"| {name} | {row.count:.3g} | {duration(row.us / 1000)} | {share} |")
    return "\n".join(lines)


def _check_line(check: Check) -> str:
    mark = {True: "✓", False: "✗", None: "–"}[check.passed]
    return f"- {mark} {check.name}{': ' + check.detail if check.detail else ''}"


def _format_known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
