"""Whatever comes from outside, no exception is raised that is not ours: JSON-RPC, settings,
workload comments, skills, evidence, snapshots, rows of a journal. Forms that are nearly right, and
arbitrary ones.

An ordinary run draws some dozens of each; `python benchmarks/fuzz.py` draws 10,000.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from example_helpers import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_lsp import analysis, config, foreign, session, wire, workloads
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evaluator import evidence
from kernel_lsp.guarding import acceptances
from kernel_lsp.journal import converting
from kernel_lsp.records import Snapshot
from kernel_lsp.server import framing
from kernel_lsp.skillbook import format as skill_format
from kernel_lsp.skillbook import library
from kernel_lsp.snapshots import format as snapshot_format
from kernel_lsp.snapshots import store as recordings
from tests.unit.guarding.test_guarding import BEFORE, evidence_of, rewritten
from tests.unit.journal.test_journal_store import FOLDER, event, proposal

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from raw_client import RawClient, framed, running

drawn = settings(
    max_examples=examples(60),
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
    deadline=None,
)
LIMIT_S, LIMIT_MB = 0.1, 500.0
TEXT = st.text(max_size=40) | st.sampled_from(
    ["", "\0", "../../x", "\u202e", "\ud800", "x" * 5000, "1e999", "true", "-1"]
)
NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([-1, 0, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf")])
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any, *, drop: bool) -> Any:
    if not at:
        return new
    first, rest = at[0], at[1:]
    if isinstance(value, list):
        copy = list(value)
        if not rest and drop:
            del copy[first]
        else:
            copy[first] = replaced(value[first], rest, new, drop=drop)
        return copy
    table = dict(value)
    if not rest and drop:
        del table[first]
    else:
        table[first] = replaced(value[first], rest, new, drop=drop)
    return table


@st.composite
def near_misses_of(draw: st.DrawFn, document: Any) -> Any:
    """A document with one to three of its values put out or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        known = list(places(document))
        at = known[draw(st.integers(0, len(known) - 1))]
        document = replaced(document, at, draw(VALUES), drop=draw(st.booleans()))
    return document


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with some of them changed, cut out or put in."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        until = draw(st.integers(at, min(len(content), at + 30)))
        content = content[:at] + draw(st.binary(max_size=12)) + content[until:]
    return content


# --- JSON-RPC ------------------------------------------------------------------------------------

URI = "file:///p/model.py"
HERE = {"line": 0, "character": 0}
RANGE = {"start": HERE, "end": {"line": 3, "character": 7}}
DOCUMENT = {"uri": URI}


def call(method: str, params: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params, **more}


MESSAGES = [
    call("textDocument/hover", {"textDocument": DOCUMENT, "position": HERE}, id=1),
    call(
        "textDocument/codeAction",
        {
            "textDocument": DOCUMENT,
            "range": RANGE,
            "context": {"diagnostics": [], "only": ["quickfix"]},
        },
        id=2,
    ),
    call("textDocument/codeLens", {"textDocument": DOCUMENT}, id=3),
    call(
        "codeAction/resolve",
        {"title": "x", "kind": "quickfix", "data": {"proposal": "p", "uri": URI}},
        id=4,
    ),
    call(
        "workspace/executeCommand",
        {"command": "kernel-lsp.listKernels", "arguments": [{"uri": URI}]},
        id=5,
    ),
    call(
        "workspace/executeCommand",
        {"command": "kernel-lsp.dismiss", "arguments": [{"uri": URI, "code": "c"}]},
        id=6,
    ),
    call(
        "workspace/executeCommand",
        {"command": "kernel-lsp.cancel", "arguments": [{"kind": "quick"}]},
        id=7,
    ),
    call(
        "textDocument/didOpen",
        {"textDocument": {**DOCUMENT, "languageId": "python", "version": 1, "text": BEFORE}},
    ),
    call(
        "textDocument/didChange",
        {
            "textDocument": {**DOCUMENT, "version": 2},
            "contentChanges": [{"range": RANGE, "text": "é"}, {"text": BEFORE}],
        },
    ),
    call("textDocument/didSave", {"textDocument": DOCUMENT}),
    call("textDocument/didClose", {"textDocument": DOCUMENT}),
    call("$/cancelRequest", {"id": 1}),
    call("$/setTrace", {"value": "off"}),
    call(
        "workspace/didChangeConfiguration",
        {"settings": {"kernel-lsp": {"device": "cpu", "hover": True}}},
    ),
    call(
        "workspace/didChangeWorkspaceFolders",
        {"event": {"added": [{"uri": "file:///p", "name": "p"}], "removed": []}},
    ),
    call("workspace/didChangeWatchedFiles", {"changes": [{"uri": URI, "type": 2}]}),
    call("window/workDoneProgress/cancel", {"token": "t"}),
    {"jsonrpc": "2.0", "id": "x", "result": [None]},
]
ENDING = ("exit", "shutdown", "initialize")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    with running(tmp_path_factory.mktemp("fuzz") / "project", KERNEL_LSP_CONSENT="never") as client:
        client.slowest_s = 0.0  # type: ignore[attr-defined]
        yield client
        assert client.peak_mb() < LIMIT_MB
        assert b"Traceback" not in client.raw
        if path := os.environ.get("KERNEL_LSP_FUZZ_OUT"):
            told = {
                "peak_mb": round(client.peak_mb(), 1),
                "slowest_hover_ms": round(client.slowest_s * 1000, 1),
            }  # type: ignore[attr-defined]
            Path(path).write_text(json.dumps(told))


@drawn
@given(message=st.sampled_from(MESSAGES).flatmap(near_misses_of) | VALUES)
def test_json_rpc(server: RawClient, message: Any) -> None:
    if isinstance(message, dict) and message.get("method") in ENDING:
        return
    server.send(json.dumps(message))
    begin = time.perf_counter()
    assert "result" in server.hover(URI, 4, 7)
    took = time.perf_counter() - begin
    if took > LIMIT_S:  # by the server, or by whatever else this machine does
        took = server.latency_s()
    server.slowest_s = max(server.slowest_s, took)  # type: ignore[attr-defined]
    assert took < LIMIT_S
    server.messages.clear()
    assert b"Traceback" not in server.raw
    server.raw.clear()


@drawn
@given(
    content=st.lists(st.sampled_from([as_json(m) for m in MESSAGES]).map(framed), max_size=3)
    .map(b"".join)
    .flatmap(damaged)
    | st.binary(max_size=300),
    size=st.integers(1, 200),
)
def test_frames(content: bytes, size: int) -> None:
    """However the bytes come apart, the same is read of them, and it ends."""

    def read(chunk: int) -> list[Any]:
        left = bytearray(content)

        def take(count: int) -> bytes:
            taken = bytes(left[: min(count, chunk)])
            del left[: len(taken)]
            return taken

        return list(framing.frames(take))

    assert read(size) == read(2**20)


# --- what lies in a repository --------------------------------------------------------------------

SETTINGS = """[project]
name = "x"

[tool.kernel-lsp]
device = "cpu"
hover = true
budget = 8
ignore = ["KL101"]
per-file-ignores = { "tests/*" = ["KL103"] }
severity = { KL101 = "hint" }
skill_folders = ["skills"]
"""


@drawn
@given(
    content=damaged(SETTINGS.encode())
    | st.dictionaries(TEXT, VALUES, max_size=3).map(
        lambda table: toml_of({"tool": {"kernel-lsp": table}})
    )
)
def test_settings(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    made, problems = config.load(
        tmp_path, environ={}, editor={"device": content[:5].decode("latin-1")}
    )
    assert made.endpoint == config.Settings().endpoint
    assert all(isinstance(problem, KernelLspError) for problem in problems)


@drawn
@given(table=near_misses_of(json.loads(json.dumps(wire.to_json(config.Settings())))))
def test_settings_of_an_editor(table: Any) -> None:
    if isinstance(table, dict):
        _, problems = config.load(None, environ={}, editor=table)
        assert all(len(str(problem)) < 200_000 for problem in problems)


def toml_of(value: Any) -> bytes:
    """As tomllib reads it, where it can be said in TOML."""
    lines = []
    for key, inner in value["tool"]["kernel-lsp"].items():
        lines.append(f"{json.dumps(key)} = {json.dumps(inner)}")
    return ("[tool.kernel-lsp]\n" + "\n".join(lines)).encode("utf-8", "surrogatepass")


WORDS = st.sampled_from(
    [
        "x=f32[128,4096]",
        "mask=bool[128,1]",
        "|",
        "init",
        "hidden=4096",
        "i64[4]<9",
        "train",
        "eval",
        "x",
        "=",
        "[",
        "]",
        "f32[]",
        "f32[-1]",
        "f99[3]",
        "x=f32[99999999999999999999]",
        "n=1e999",
        "s='a'",
        "<",
        "x=[[[",
        "(",
        "f32[3]<",
    ]
)


@drawn
@given(rest=st.lists(WORDS | TEXT, max_size=8).map(" ".join) | st.text(max_size=300))
def test_workload_comments(tmp_path: Path, rest: str) -> None:
    text = (
        f"import torch\nfrom torch import nn\n\n\n# kernel-lsp: workload {rest}\n"
        + BEFORE[BEFORE.index("class") :]
    )
    snapshot = Snapshot(uri=(tmp_path / "m.py").as_uri(), text=text)
    found = session.examine(snapshot)
    for target in found.targets:
        _, problems = workloads.workloads_for(snapshot, target, str(tmp_path))
        assert all(isinstance(problem, KernelLspError) for problem in problems)


RECORDED = """[[workload]]
target = "m.py::Model"
name = "a"
training = false
calls = 3
share = 0.5
inputs = [{ name = "x", dtype = "float32", shape = [8, 8] }]
"""


@drawn
@given(content=damaged(RECORDED.encode()))
def test_recorded_workloads(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".kernel-lsp").mkdir(exist_ok=True)
    (tmp_path / ".kernel-lsp" / "workloads.toml").write_bytes(content)
    snapshot = Snapshot(uri=(tmp_path / "m.py").as_uri(), text=BEFORE)
    target = analysis.analyze(snapshot).targets[0]
    _, problems = workloads.workloads_for(snapshot, target, str(tmp_path))
    assert all(isinstance(problem, KernelLspError) for problem in problems)


SKILL = next(
    path for path in sorted(library.built_in_folder().iterdir()) if (path / "SKILL.md").exists()
)


@drawn
@given(content=damaged((SKILL / "SKILL.md").read_bytes()[:4000]) | st.binary(max_size=400))
def test_skills(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / SKILL.name
    folder.mkdir(exist_ok=True)
    (folder / "SKILL.md").write_bytes(content)
    made, problems = skill_format.examine(folder)
    assert made is not None or problems


EVIDENCE = json.loads(json.dumps(wire.to_json(evidence_of(BEFORE, rewritten(BEFORE)))))


@drawn
@given(
    content=near_misses_of(EVIDENCE).map(as_json) | damaged(as_json(EVIDENCE)) | VALUES.map(as_json)
)
def test_evidence(content: bytes) -> None:
    try:
        evidence.request_of(evidence.parse(content))
    except KernelLspError as error:
        assert error.remedy


@drawn
@given(
    data=near_misses_of({"schema_version": 1, "path": "model.py", "evidence": EVIDENCE}) | VALUES
)
def test_acceptances(tmp_path: Path, data: Any) -> None:
    place = tmp_path / ".kernel-lsp" / "accepted"
    place.mkdir(parents=True, exist_ok=True)
    (place / "a.json").write_bytes(as_json(data))
    assert len(list(acceptances(tmp_path))) == 1


# --- what lies in the data folder, or with the team -----------------------------------------------

HEADER = {"target": "m.Model", "specs": [{"shape": [3], "dtype": "float32"}], "program": "x"}


@drawn
@given(
    content=damaged(snapshot_format.encode(HEADER, {"object": b"abc", "call": b"de"}))
    | near_misses_of({**HEADER, "format": snapshot_format.FORMAT, "parts": {"object": [0, 3]}}).map(
        lambda header: (
            snapshot_format.MAGIC
            + len(as_json(header)).to_bytes(8, "big")
            + as_json(header)
            + b"abc"
        )
    )
)
def test_snapshots(content: bytes) -> None:
    try:
        made = snapshot_format.decode(content)
    except snapshot_format.Unreadable:
        return
    assert sum(map(len, made.parts.values())) <= len(made.parts) * len(content)


INDEX = {
    "format": recordings.FORMAT,
    **{
        "program": "train.py",
        "root": "/p",
        "created": "2026",
        "command": ["python"],
        "elapsed_s": 1.0,
    },
    **{
        "seen": [{"target": "m"}],
        "ways": [{"target": "m", "file": "0.call"}],
        "devices": [],
        "profile": {},
    },
}


@drawn
@given(content=near_misses_of(INDEX).map(as_json) | damaged(as_json(INDEX)))
def test_recordings(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "complete").touch()
    (tmp_path / "index.json").write_bytes(content)
    made = recordings.read(tmp_path)
    assert made is None or made.folder == tmp_path


ROW = converting.event_row(event(), "s", FOLDER)
SAVED = converting.proposal_row(proposal(), FOLDER, "n.py", True, "s")


@drawn
@given(row=near_misses_of(ROW), saved=near_misses_of(SAVED))
def test_rows_of_a_journal(row: Any, saved: Any) -> None:
    def as_row(value: Any) -> Any:
        return (
            SimpleNamespace(**value)
            if isinstance(value, dict) and all(map(str.isidentifier, value))
            else value
        )

    for convert in (converting.event, converting.dismissal):
        assert len(converting.readable([as_row(row)], convert)) <= 1
    assert (
        len(
            converting.readable(
                [as_row(saved)], lambda one: converting.to_stored(cast("Any", one), {})
            )
        )
        <= 1
    )


@drawn
@given(content=st.binary(max_size=300) | VALUES.map(as_json))
def test_the_readers_themselves(content: bytes) -> None:
    for read in (foreign.json_value, lambda text: foreign.toml(text.decode("utf-8"))):
        try:
            read(content)
        except ValueError:
            continue
