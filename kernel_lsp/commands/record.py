"""``kernel-lsp record``: what a program really calls its modules and kernels with."""

from __future__ import annotations

from pathlib import Path

import typer

from kernel_lsp.commands import console
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.errors import KernelLspError, WorkloadError
from kernel_lsp.presenter.plurals import count
from kernel_lsp.programs import recording
from kernel_lsp.workloads import running

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
SHOWN = 8


@with_loudness
def record(
    command: list[str] = typer.Argument(
        ..., metavar="-- COMMAND…", help="The program, as in a shell."
    ),
    out: Path | None = typer.Option(
        None, dir_okay=False, help="Where to write; default: .kernel-lsp/PROGRAM.recorded.toml"
    ),
    root: Path | None = typer.Option(
        None, file_okay=False, exists=True, help="Whose code is recorded; default: this workspace."
    ),
    steps: int | None = typer.Option(
        None,
        min=1,
        help="End the program after so many steps (of its optimizer, or calls of its model).",
    ),
    step: str | None = typer.Option(
        None,
        metavar="FUNCTION",
        help="What --steps counts are calls of it: train_step, or package.module:Trainer.step.",
    ),
    snapshots: bool = typer.Option(
        True,
        help="Keep calls too, in your data folder, so that any module can be opened as it was.",
    ),
) -> None:
    """Run a program unchanged and record how it calls its modules and Triton kernels.

    The file in the workspace holds shapes, dtypes, layouts, ranges of values and shares of time,
    never values. Snapshots of calls (objects and configuration, small integer and mask tensors;
    never weights or activations) stay in your data folder, for you alone. Nothing leaves this
    machine. The exit code is the program's own; 2 when nothing could be run or written."""
    workspace = (root or console.workspace_of(Path("here"))).absolute()
    path = (out or running.default_path(workspace, command)).absolute()
    try:
        data_dir = Path(console.settings(workspace).data_dir)
        for earlier in running.recover(workspace, data_dir):
            _tell("an interrupted recording was saved", earlier)
        recorded = recording.record(
            workspace,
            command,
            path,
            data_dir,
            keep_calls=snapshots,
            steps=steps,
            marked=marked_function(step),
        )
    except KernelLspError as error:
        console.fail(error)
    _tell("recorded", recorded)
    raise typer.Exit(recorded.status)


def marked_function(named: str | None) -> tuple[str, str] | None:
    """Module and qualified name of what ``--step`` names: a function of the program's script, or
    ``package.module:Class.method``."""
    if named is None:
        return None
    module, colon, qualname = named.rpartition(":")
    names = [*(module.split(".") if colon else ()), *qualname.split(".")]
    if not all(name.isidentifier() for name in names):
        console.fail(
            KernelLspError(
                f"--step {named!r} names no function",
                "write train_step, or package.module:Trainer.step",
            )
        )
    return module if colon else "__main__", qualname


def _tell(what: str, recorded: running.Recorded) -> None:
    """On standard error, because standard output is the program's."""
    merged = recorded.merged
    for note in merged.notes:
        console.err.print(f"record: {note}", markup=False)
    if recorded.path is None:
        console.err.print(str(NOTHING), markup=False)
        return
    ways = len(merged.ways) - recorded.left_out
    text = f"{count(len(merged.seen), 'target')}, {count(ways, 'way')} of calling them"
    lines = [f"{what}: {text}, in {recorded.path}"]
    lines += [
        f"  {entry.get('share', 0):6.1%}  {entry['calls']:>8} calls  {entry['target']}"
        for entry in merged.seen[:SHOWN]
    ]
    console.err.print("\n".join(lines), markup=False, soft_wrap=True)


NOTHING = WorkloadError(
    "nothing was recorded: no module of this workspace was called and no Triton kernel of it "
    "launched",
    "run what calls them: a file that only defines them calls nothing; run it where the code is "
    "or name the"
    " folder by --root; python -I and -E keep the recorder out",
)
