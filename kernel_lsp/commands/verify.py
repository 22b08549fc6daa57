"""``kernel-lsp verify``: the gate alone, on two files."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import typer

from kernel_lsp import interpreter
from kernel_lsp.commands import console
from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import evaluate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.files import read_source
from kernel_lsp.presenter import cards
from kernel_lsp.records import EvalStatus, Evaluation


class Require(StrEnum):
    FASTER = "faster"
    CORRECT = "correct"


def verify(
    reference: Path = typer.Argument(..., help="A file with Model, get_inputs and get_init_inputs."),
    candidate: Path = typer.Argument(
        ..., help="A file with ModelNew (or Model), which receives the reference's weights."
    ),
    device: str = typer.Option(
        "auto", help="auto, cuda or cpu; Triton without a GPU runs in the interpreter."
    ),
    require: Require = typer.Option(Require.FASTER, help="Right and faster, or right alone."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Judge a candidate against a reference. Exit code 0: accepted, 1: rejected, 2: could not judge."""
    settings = console.settings(console.workspace_of(reference), device=device)
    evaluation = console.run(_judge(reference, candidate, settings, require))
    accepted = _accepted(evaluation, require, settings)
    if as_json:
        console.print_json(accepted=accepted, evaluation=evaluation)
    else:
        _show(evaluation)
        console.out.print(
            "accepted" if accepted else "rejected", style="bold green" if accepted else "bold red"
        )
    if evaluation.status is EvalStatus.NOT_RUN:
        raise typer.Exit(console.EXIT_CANNOT)
    raise typer.Exit(console.EXIT_OK if accepted else console.EXIT_NO)


async def _judge(reference: Path, candidate: Path, settings: Settings, require: Require) -> Evaluation:
    try:
        texts = [read_source(path).text for path in (reference, candidate)]
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise EvaluationError(f"could not judge: {error}", "name two readable Python files") from error
    probe = await interpreter.probe(interpreter.find(reference.parent, settings.python).path)
    if probe.remedy:
        raise EvaluationError("could not judge: no torch", probe.remedy)
    if settings.device == "cuda" and not probe.cuda:
        raise EvaluationError("could not judge: torch sees no CUDA device", "use --device cpu or auto")
    base = request_from_files(*texts)
    device = "cuda" if probe.cuda and settings.device != "cpu" else "cpu"
    if base.uses_triton and device == "cpu":
        device = "interpreter"
    request = replace(base, device=device, python=probe.python, require_speed=require is Require.FASTER)
    with console.progress("verify") as report:
        return await evaluate(request, report)


def _show(evaluation: Evaluation) -> None:
    console.out.print(
        f"{evaluation.status.value} on {evaluation.device_name or evaluation.device}", style="bold"
    )
    for check in evaluation.checks:
        mark = {True: "ok", False: "no", None: "--"}[check.passed]
        console.out.print(f"  {mark}  {check.name}  {check.detail}", markup=False)
    for timing in evaluation.timings:
        spread = f"{cards.duration(timing.p20_ms)} to {cards.duration(timing.p80_ms)}"
        console.out.print(
            f"      {timing.provider:10} {cards.duration(timing.median_ms)} ({spread}, p20 to p80)"
        )
    for baseline, interval in evaluation.speedups.items():
        console.out.print(f"      {cards.spread(interval)} against {baseline}", markup=False)
    if evaluation.detail:
        console.out.print(f"  {evaluation.detail}", markup=False)


def _accepted(evaluation: Evaluation, require: Require, settings: Settings) -> bool:
    if require is Require.CORRECT:
        return evaluation.status is EvalStatus.PASSED
    return evaluation.faster(settings.threshold)
