"""The host's own part: what reaches the server and the journal, with a pipeline that only
reports."""

import asyncio
import io
from pathlib import Path

import pytest
from editor_helpers import TEXT, outcome, proposal
from library_helpers import lesson

from kernel_lsp import wire
from kernel_lsp.config import Settings
from kernel_lsp.host import Host
from kernel_lsp.journal.store import FILE_NAME, Journal
from kernel_lsp.library import SkillLibrary
from kernel_lsp.pipeline.lessons import LessonQueue
from kernel_lsp.records import Event, EventKind, Job, Outcome, Progress, Proposal
from tests.unit.pipeline.test_pipeline_proving import FASTER, NAMES, gate

SETTINGS = Settings()
JOB = Job(text=TEXT, path="/project/model.py", qualname="Model", folder="/project")


class Reporting:
    """In place of engine, judge and worker."""

    def __init__(self, *, error: Exception | None = None, endless: bool = False) -> None:
        self.error, self.endless = error, endless
        self.reported = asyncio.Event()

    async def optimize(self, job: Job, report: object, turn: object) -> Outcome:
        assert callable(report)
        report(Progress(phase="evaluate", message="one"))
        report(Progress(phase="evaluate", message="too soon after one"))
        report(Progress(phase="evaluate", message="found", proposal=proposal()))
        self.reported.set()
        if self.error is not None:
            raise self.error
        if self.endless:
            await asyncio.Event().wait()
        return outcome(proposal(), proposal(id="p-loser"))

    async def close(self) -> None:
        """It has nothing warm."""


KEY = bytes(wire.KEY_BYTES)


def message(op: str = "optimize", **fields: object) -> dict[str, object]:
    job, settings = wire.to_json(JOB), wire.to_json(SETTINGS)
    return {"op": op, "id": 7, "job": job, "settings": settings, "client": "test 1", **fields}


def frames(replies: io.BytesIO) -> list[dict[str, object]]:
    pipe = wire.Pipe(io.BytesIO(replies.getvalue()), wire.Seal(KEY, wire.REPLIES))
    found = []
    while (frame := wire.read_frame(pipe)) is not None:
        found.append(frame[0])
    return found


async def answered(
    tmp_path: Path, pipeline: Reporting, *, cancel: bool = False
) -> list[dict[str, object]]:
    replies = io.BytesIO()
    host = Host(tmp_path, wire.Pipe(replies, wire.Seal(KEY, wire.REPLIES)))
    host._pipelines[SETTINGS] = pipeline  # type: ignore[assignment]
    await host.handle(message())
    await asyncio.wait_for(pipeline.reported.wait(), 120)
    if cancel:
        await host.handle(message("cancel"))
    while not any(frame["op"] in ("reply", "failed") for frame in frames(replies)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await host.close()
    return frames(replies)


def stored(tmp_path: Path) -> tuple[list[str], list[str]]:
    """(proposals, events) of the journal."""
    with Journal.open(tmp_path / FILE_NAME) as journal:
        events = [event for row in journal.sessions() for event in journal.session(row.id)[1]]
        ids = sorted(found.proposal.id for found in journal.proposals())
    return ids, sorted(f"{event.kind.value} {event.proposal}" for event in events)


async def test_a_verified_rewrite_is_never_throttled_away(tmp_path: Path) -> None:
    sent = [
        frame["progress"]
        for frame in await answered(tmp_path, Reporting())
        if frame["op"] == "progress"
    ]
    assert [wire.from_json(Progress, found).message for found in sent] == ["one", "found"]
    assert wire.from_json(Proposal, sent[-1]["proposal"]) == proposal()  # type: ignore[index]


async def test_every_verdict_is_in_the_journal_once(tmp_path: Path) -> None:
    await answered(tmp_path, Reporting())
    assert stored(tmp_path) == (["p-Model", "p-loser"], ["evaluated p-Model", "evaluated p-loser"])


async def test_what_was_offered_is_known_to_the_journal_though_its_job_was_cancelled(
    tmp_path: Path,
) -> None:
    sent = await answered(tmp_path, Reporting(endless=True), cancel=True)
    assert sent[-1] == {"op": "failed", "id": 7, "cause": "cancelled"}
    assert stored(tmp_path) == (["p-Model"], ["evaluated p-Model"])


async def test_a_failure_is_one_line_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ValueError("first line\nTraceback (most recent call last):\n  File x")
    sent = await answered(tmp_path, Reporting(error=error))
    assert sent[-1]["cause"] == "optimize failed: ValueError: first line"
    assert "Traceback" in capsys.readouterr().err


async def test_a_damaged_journal_is_said_to_the_server(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is no database" * 100)
    notices = [frame for frame in await answered(tmp_path, Reporting()) if frame["op"] == "notice"]
    assert len(notices) == 1
    assert "set aside" in str(notices[0]["text"])


async def asked(
    tmp_path: Path, pipeline: object, settings: Settings, **fields: object
) -> dict[str, object]:
    """The host's answer to one request."""
    replies = io.BytesIO()
    host = Host(tmp_path, wire.Pipe(replies, wire.Seal(KEY, wire.REPLIES)))
    host._pipelines[settings] = pipeline  # type: ignore[assignment]
    await host.handle({"id": 3, "settings": wire.to_json(settings), **fields})
    while not any(frame["op"] in ("reply", "failed") for frame in frames(replies)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await host.close()
    (found,) = [frame for frame in frames(replies) if frame["op"] in ("reply", "failed")]
    return found


async def test_a_kept_rewrite_waits_to_be_learned_from_until_it_is_taken_back(
    tmp_path: Path,
) -> None:
    def event(kind: EventKind) -> list[object]:
        made = Event(kind=kind, proposal="p", time="2026-01-02T03:04:05+00:00", folder="/project")
        return [wire.to_json(made)]

    for kind, waiting in ((EventKind.KEPT, ("p",)), (EventKind.REVERTED, ())):
        told = await asked(tmp_path, Reporting(), SETTINGS, op="record", events=event(kind))
        assert told["value"] == 1 and LessonQueue(tmp_path).waiting() == waiting


@pytest.mark.parametrize(
    ("consent", "line"), [("always", "learned "), ("never", None), ("ask", None)]
)
async def test_idle_work_is_done_on_targets_that_their_user_allowed(
    tmp_path: Path, consent: str, line: str | None
) -> None:
    folder, data = tmp_path / "project", tmp_path / "data"
    folder.mkdir()
    net = "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
    for name in NAMES:
        body = f"        return x + {ord(name)}\n\ndef get_inputs():\n    return [torch.ones(2)]\n"
        (folder / f"{name}.py").write_text(net + body)
    SkillLibrary(data).stage(lesson())
    settings = Settings(data_dir=str(data), consent=consent)
    pipeline = gate(data, FASTER)
    told = await asked(data, pipeline, settings, op="learn", folder=str(folder))
    assert (str(told["value"])[:8] if told["value"] else None) == line
    assert bool(pipeline.asked) == (line is not None)
