"""``kernel-lsp verify``: the gate alone, on two files or on the evidence of an earlier verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import typer

from kernel_lsp import interpreter
from kernel_lsp.commands import console
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationRequest, Gate, Precision, evidence, open_gate, repeat
from kernel_lsp.evaluator.verify import device_for, program_text, request_from_files
from kernel_lsp.guarding import accept_file
from kernel_lsp.interpreter import Probe
from kernel_lsp.presenter import verdicts
from kernel_lsp.records import QUIET_REMEDY, EvalStatus, Evaluation, Evidence, SpeedAnswer

DECIDED_BY_EVIDENCE = ("reference", "candidate", "device", "require", "precision", "inference")

SPEED_UNKNOWN = (
    "right; its speed is unknown, because Triton's interpreter judged it: --require correct "
    "accepts that,"
    " a GPU tells the speed"
)
STYLES = {
    console.EXIT_OK: "bold green",
    console.EXIT_NO: "bold red",
    console.EXIT_CANNOT: "bold yellow",
}


class Require(StrEnum):
    FASTER = "faster"
    CORRECT = "correct"


@with_loudness
def verify(
    context: typer.Context,
    reference: Path | None = typer.Argument(
        None, help="A file with Model, get_inputs and get_init_inputs."
    ),
    candidate: Path | None = typer.Argument(
        None, help="A file with ModelNew (or Model), which receives the reference's weights."
    ),
    device: str = typer.Option(
        "auto", help="auto, cuda or cpu; Triton without a GPU runs in the interpreter."
    ),
    require: Require = typer.Option(Require.FASTER, help="Right and faster, or right alone."),
    precision: Precision = typer.Option(
        Precision.FAITHFUL, help="How much less accurate than the reference the candidate may be."
    ),
    inference: bool = typer.Option(
        False,
        "--inference",
        help="Nobody differentiates these calls; else gradients belong to the result.",
    ),
    repeated: Path | None = typer.Option(
        None,
        "--evidence",
        help="Repeat the verdict of this document instead, and say whether it holds.",
    ),
    save: Path | None = typer.Option(
        None, "--save-evidence", help="Write all that the verdict rests on, as one JSON document."
    ),
    accept: bool = typer.Option(
        False,
        "--accept",
        help="Where it is accepted, have `kernel-lsp guard` judge the file again from now on.",
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Judge a candidate against a reference. Exit code 0: accepted, 1: rejected, 2: could not
    judge.

    A Triton kernel without a GPU is right or wrong, and faster was asked for: that is 2 when it is
    right.

    With --evidence: 0: the verdict holds, 1: it does not hold any more, 2: could not judge.
    """
    if save is not None and not save.absolute().parent.is_dir():
        console.fail(
            EvaluationError(f"there is no folder {save.absolute().parent}", "name one that exists")
        )
    if repeated is not None:
        given = [name for name in DECIDED_BY_EVIDENCE if _is_given(context, name)]
        if given:
            cause = f"--evidence decides about {', '.join(given)} itself"
            console.fail(EvaluationError(cause, "leave the others out"))
        raise typer.Exit(_repeat(repeated, save, as_json))
    if reference is None or candidate is None:
        console.fail(
            EvaluationError(
                "could not judge: two files are needed", "name them, or --evidence FILE"
            )
        )
    settings = console.settings(console.workspace_of(reference), device=device)
    kept = console.run(_judge(reference, candidate, settings, require, precision, inference))
    code = _tell(kept, save, as_json, conclusion(kept.evaluation, require, settings))
    if accept and code == console.EXIT_OK:
        _accept(candidate, kept)
    raise typer.Exit(code)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


# --- two files ------------------------------------------------------------------------------


async def _judge(
    reference: Path,
    candidate: Path,
    settings: Settings,
    require: Require,
    precision: Precision,
    inference: bool,
) -> Evidence:
    texts = [program_text(path) for path in (reference, candidate)]
    base = request_from_files(*texts, precision=precision, inference=inference, allow_native=True)
    async with open_gate(settings) as gate:
        probe = await _probe(reference.parent, settings, gate)
        device = device_for(base, settings.device, bool(probe.cuda))
        faster = require is Require.FASTER
        request = replace(base, device=device, python=probe.python, require_speed=faster)
        kept = await _evaluate(request, gate)
    return replace(kept, threshold=settings.threshold if faster else None)


async def _probe(folder: Path, settings: Settings, gate: Gate) -> Probe:
    """The interpreter that will judge. Raises EvaluationError when it has no torch,
    ConsentRequired."""
    console.require_consent(settings, folder)
    if (there := await gate.elsewhere()) is not None:
        return there
    found = interpreter.find(folder, settings.python)
    probe = await interpreter.probe(found.path, Path(settings.data_dir))
    if probe.remedy:
        raise EvaluationError("could not judge: no torch", probe.remedy)
    return probe


async def _evaluate(request: EvaluationRequest, gate: Gate) -> Evidence:
    kept: list[Evidence] = []
    with console.progress("verify") as report:
        await gate.evaluate(request, report, kept.append)
    return kept[0]


def conclusion(evaluation: Evaluation, require: Require, settings: Settings) -> tuple[int, str]:
    """Exit code and the words for it."""
    right = evaluation.status is EvalStatus.PASSED
    if evaluation.status is EvalStatus.NOT_RUN:
        return console.EXIT_CANNOT, "could not judge"
    if right and require is Require.FASTER and evaluation.device == "interpreter":
        return console.EXIT_CANNOT, SPEED_UNKNOWN
    if right and (require is Require.CORRECT or evaluation.faster(settings.threshold)):
        return console.EXIT_OK, "accepted"
    answer = evaluation.speed_answer(settings.threshold)
    if evaluation.unsure and answer is SpeedAnswer.NOT_SURE:
        return console.EXIT_CANNOT, f"right; not sure whether it is faster: {QUIET_REMEDY}"
    return console.EXIT_NO, "rejected"


def _tell(kept: Evidence, save: Path | None, as_json: bool, conclusion: tuple[int, str]) -> int:
    code, words = conclusion
    if as_json:
        threshold = kept.threshold if kept.threshold is not None else Settings().threshold
        console.print_json(
            accepted=code == console.EXIT_OK,
            speed=kept.evaluation.speed_answer(threshold),
            evaluation=kept.evaluation,
        )
    else:
        _print(verdicts.evaluation_lines(kept.evaluation))
        console.out.print(words, style=STYLES[code], soft_wrap=True)
    _save(save, kept)
    return code


# --- the evidence of an earlier verdict --------------------------------------------------------


def _repeat(path: Path, save: Path | None, as_json: bool) -> int:
    settings = console.settings(console.workspace_of(Path("here")))
    before, now = console.run(_judge_again(path, settings))
    repetition = repeat.compare(before, now)
    if as_json:
        console.print_json(
            holds=repetition.holds, facts=repetition.facts, evaluation=now.evaluation
        )
    else:
        _print(verdicts.repetition_lines(repetition))
    _save(save, now)
    if repetition.holds is None:
        return console.EXIT_CANNOT
    return console.EXIT_OK if repetition.holds else console.EXIT_NO


async def _judge_again(path: Path, settings: Settings) -> tuple[Evidence, Evidence]:
    before = evidence.read(path)
    async with open_gate(settings) as gate:
        probe = await _probe(Path(), settings, gate)
        measured_on = before.evaluation.device_name or before.device
        if before.device == "cuda" and not probe.cuda:
            raise EvaluationError(
                f"could not judge: the verdict was reached on {measured_on} and torch sees no CUDA "
                f"device here",
                "repeat it on a machine with that GPU",
            )
        if before.device == "cuda" and probe.device and probe.device != measured_on:
            raise EvaluationError(
                f"could not judge: the verdict was reached on {measured_on}, this machine has "
                f"{probe.device}",
                "repeat it on a machine with that GPU, or judge the two programs anew here",
            )
        request = replace(evidence.request_of(before), python=probe.python)
        if (home := before.reference.home) is not None:
            from kernel_lsp.pipeline.kept import own_home  # few documents come so far

            own = own_home(home, Path(settings.data_dir))
            request = replace(request, reference=replace(before.reference, home=own))
        now = await _evaluate(request, gate)
        return before, replace(now, threshold=before.threshold)


# --- both -----------------------------------------------------------------------------------


def _print(lines: Iterable[str]) -> None:
    for number, line in enumerate(lines):
        console.out.print(line, style="bold" if number == 0 else None, markup=False, soft_wrap=True)


def _accept(candidate: Path, kept: Evidence) -> None:
    try:
        written = accept_file(console.workspace_of(candidate), candidate, kept)
    except OSError as error:
        console.fail(EvaluationError(f"it could not be kept for guard: {error}", "free the folder"))
    except EvaluationError as error:
        console.fail(error)
    else:
        console.err.print(f"guard judges it from now on: {written}", soft_wrap=True)


def _save(path: Path | None, kept: Evidence) -> None:
    if path is None:
        return
    try:
        evidence.write(path, kept)
    except EvaluationError as error:
        console.fail(error)
