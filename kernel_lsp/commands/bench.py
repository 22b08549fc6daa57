"""``kernel-lsp bench``: a suite of reference files, every task judged and timed in one run;
resumes."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from kernel_lsp.cluster import Cluster
from kernel_lsp.commands import console, rows, searching, suites
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.config import Settings
from kernel_lsp.errors import KernelLspError
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.scores import BASELINES, SuiteScores

SCORED = ("tasks", "correct", "fast_1", "fast_1.05", "fast_1.2", "fast_2", "geomean", "amsr")
BESIDE = (
    "share_offered", "slower_than_best", "roofline_share", "peak_memory", "first_verified_s",
    "total_s",
)  # fmt: skip


@with_loudness
def bench(
    paths: list[Path] = typer.Argument(
        ...,
        help="A folder of files with Model, get_inputs and get_init_inputs; with --merge, "
        "results files.",
    ),
    filter: str = typer.Option(
        "", help="Only tasks whose relative path matches this regular expression."
    ),
    device: str = typer.Option("auto", help="auto, cuda or cpu."),
    budget: int = typer.Option(
        8, min=1, help="Candidates that the quick search may judge per task."
    ),
    search: searching.SearchChoice = searching.SEARCH,
    policy: str | None = searching.POLICY,
    model: str | None = searching.MODEL,
    endpoint: str | None = searching.ENDPOINT,
    candidates_per_task: int | None = searching.CANDIDATES,
    seconds: float | None = searching.SECONDS,
    tokens: int | None = searching.TOKENS,
    gpu_seconds: float | None = searching.GPU_SECONDS,
    allow_remote: bool = searching.ALLOW_REMOTE,
    jobs: int = typer.Option(
        1, min=1, help="Tasks at the same time; one after another uses the device."
    ),
    shard: str = typer.Option(
        "1/1", help="I/N: every N-th task from the I-th, for several GPUs or machines."
    ),
    cluster: str | None = typer.Option(
        None,
        help="HOST:PORT of a Ray cluster whose nodes do the tasks, one GPU each; auto: the one "
        "of this"
        " machine; local: this machine's GPUs. --jobs then counts on each GPU.",
    ),
    limit_s: float | None = typer.Option(
        None, min=0.0, help="After so many seconds no task is begun."
    ),
    out: Path | None = typer.Option(
        None,
        help="Results; an existing file is continued. Default: results.json; nothing with --merge.",
    ),
    merge: bool = typer.Option(
        False, "--merge", help="Only read results files and print one table."
    ),
    candidates: Path | None = typer.Option(None, help="Judge these files instead of proposing."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Per task eager, eager with TF32, torch.compile and ours in one run; fast_p and means per
    group."""
    try:
        if merge:
            results = suites.merge_results([_existing(path) for path in paths], out)
            results.store()
        else:
            root = _root(paths)
            suite = suites.find(root, filter, _shard(shard), candidates)
            results = suites.load(out or Path("results.json"))
            settings = console.settings(
                root, device=device, budget=budget, policy=policy, model=model, endpoint=endpoint
            )
            plan = searching.plan(
                settings,
                search,
                candidates=candidates_per_task,
                seconds=seconds,
                tokens=tokens,
                gpu_seconds=gpu_seconds,
            )
            origin = searching.allowed_origin(settings, root, now=allow_remote)
            asked = rows.RowOptions(search=plan, allowed_origin=origin)
            _run(asked, settings, cluster, suite, results, jobs, limit_s)
    except KernelLspError as error:
        console.fail(error)
    _show(results, as_json)


def _run(
    asked: rows.RowOptions,
    settings: Settings,
    cluster: str | None,
    suite: suites.Suite,
    results: suites.SuiteResults,
    jobs: int,
    limit_s: float | None,
) -> None:
    def say(text: str) -> None:
        console.err.print(text, markup=False, soft_wrap=True)

    async def run(maker: rows.RowMaker) -> None:
        await suites.SuiteRun(
            maker=maker,
            suite=suite,
            results=results,
            cluster=cluster,
            jobs=jobs,
            limit_s=limit_s,
            say=say,
            report=report,
        ).all()

    async def spread(address: str) -> None:
        make, device = rows.spread(settings, asked), settings.device
        async with Cluster(
            address=address, make=make, device=device, width=jobs, python=settings.python, say=say
        ) as nodes:
            await run(rows.Spread(nodes, settings, asked))

    with console.progress("bench", lines=False) as report:
        console.run(spread(cluster) if cluster else run(rows.LocalRows(Pipeline(settings), asked)))


def _root(paths: list[Path]) -> Path:
    if len(paths) != 1:
        raise KernelLspError(
            f"{len(paths)} paths were given", "name one folder of tasks, or add --merge"
        )
    return paths[0]


def _existing(path: Path) -> suites.SuiteResults:
    if not path.exists():
        raise KernelLspError(f"{path} does not exist", "--merge reads files that --out has written")
    return suites.load(path)


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, of = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= of:
        raise KernelLspError(f"{text} is no shard", "--shard 2/8 is the second of eight")
    return number, of


def _show(results: suites.SuiteResults, as_json: bool) -> None:
    content = results.content()
    if as_json:
        console.print_json(**content)
        return
    console.out.print(_table(content["groups"]), markup=False, soft_wrap=True)
    if content["missing"]:
        console.out.print(f"not begun, and in no number: {len(content['missing'])} tasks")


def _table(groups: dict[str, dict[str, SuiteScores]]) -> str:
    """Two lines a group, against eager and against the best baseline of the same precision; as
    wide as it is, because it is read in logs too."""
    heads = [*SCORED, *(name.replace("_", " ") for name in BESIDE)]
    widths = [max(6, len(head)) for head in heads]
    lines = [_line("group", "against", heads, widths)]
    for group, scores in groups.items():
        for baseline in BASELINES:
            first = baseline == BASELINES[0]
            beside = [_cell(scores["facts"][name]) if first else "" for name in BESIDE]
            cells = [*(_cell(scores[baseline][name]) for name in SCORED), *beside]
            lines.append(_line(group if first else "", baseline, cells, widths))
    return "\n".join(lines)


def _line(group: str, baseline: str, cells: list[str], widths: list[int]) -> str:
    numbers = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{group:26} {baseline:8} {numbers}".rstrip()


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
