"""Why nothing is offered, as a person reads it: places in the file, words, a hover, a refused
action."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from editor_helpers import TEXT, URI, proposal, snapshot, target_of

from kernel_lsp import analysis, wire
from kernel_lsp.config import Settings
from kernel_lsp.errors import CaptureError, KernelLspError, WorkerLost
from kernel_lsp.pipeline import silence
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.places import locate_error, place_misses
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.presenter import near_misses as misses
from kernel_lsp.records import (
    EvalStatus,
    Explained,
    Job,
    NearMiss,
    Outcome,
    Proposal,
    Roof,
    RoofKind,
    Snapshot,
    Verdict,
)
from kernel_lsp.session import EditorSession

MEMORY = Roof(
    kind=RoofKind.MEMORY, taken_s=33e-6, least_s=31.2e-6, bytes=134_217_728, flops=0.0,
    bytes_per_s=4.3e12,
    device="an H200",
)  # fmt: skip
SOFTMAX = NearMiss(
    op="softmax", missing="a dropout of 0.1 draws random numbers behind "
                          "softmax", skill="flash-attention",
    remedy="use the library's", share=0.61, line=14, code="w = torch.softmax(s, -1)",
)  # fmt: skip
RELU = NearMiss(op="relu", missing="no skill applies to it here", share=0.2, places=3, roof=MEMORY)
SILENT = Outcome(qualname="Model", note="no skill applies to this program", misses=(SOFTMAX, RELU))


# --- words -------------------------------------------------------------------------------


def test_a_terminal_shows_place_share_skill_reason_and_remedy() -> None:
    first, remedy, second = misses.lines(SILENT, "model.py")
    assert first == (
        "model.py:14: softmax (about 61% of the time): flash-attention: a dropout of 0.1 "
        "draws random"
        " numbers behind softmax"
    )
    assert remedy == "  -> use the library's"
    assert second == (
        "model.py: relu in 3 places (about 20% of the time): no skill applies to it here; the "
        "first is at"
        " the memory's roof: 134 MB at 4.3 TB/s of an H200 take 31.2 µs of about 33 µs"
    )


@pytest.mark.parametrize(
    ("kind", "flops", "words"),
    [
        (
            RoofKind.ARITHMETIC,
            1.37e11,
            "137 GFLOP at the library's rate on an H200 take 31.2 µs of about 33",
        ),
        (
            RoofKind.LAUNCH,
            0.0,
            "too small: about 33 µs on an H200, most of it to start kernels that move 134",
        ),
        (
            RoofKind.NONE,
            0.0,
            "about 33 µs on an H200, of which the 134 MB that it must move take 31.2 µs",
        ),
    ],
)
def test_roofs_in_words(kind: RoofKind, flops: float, words: str) -> None:
    assert words in misses.roof_words(replace(MEMORY, kind=kind, flops=flops))


def test_the_roof_of_a_whole_call_is_said_once() -> None:
    whole = replace(SILENT, misses=(), roof=MEMORY)
    assert misses.lines(whole, "m.py") == [f"a whole call: {misses.roof_words(MEMORY)}"]
    alone = replace(whole, misses=(replace(RELU, share=1.0),))
    assert len(misses.lines(alone, "m.py")) == 1


def test_nothing_is_said_where_something_is_offered() -> None:
    offered = replace(SILENT, note=None, roof=MEMORY)
    assert misses.lines(offered, "m.py") == [] and misses.markdown(offered, "") == []


def test_a_refused_action_names_the_nearest_skill() -> None:
    assert misses.briefly(SILENT) == (
        "no skill applies to this program; flash-attention nearly does (line 14): a dropout of "
        "0.1 draws"
        " random numbers behind softmax"
    )
    assert misses.briefly(replace(SILENT, misses=(RELU,))) == "no skill applies to this program"


def test_an_outcome_travels_as_json_and_back() -> None:
    sent = replace(SILENT, roof=MEMORY)
    assert wire.from_json(Outcome, wire.to_json(sent)) == sent
    old = {key: value for key, value in wire.to_json(sent).items() if key not in ("misses", "roof")}
    assert wire.from_json(Outcome, old).misses == ()  # as a cache of an earlier version has it


class Asked:
    """An engine that may be lost."""

    def __init__(self, error: KernelLspError | None = None) -> None:
        self.error, self.times = error, 0

    async def explain(self) -> Explained:
        self.times += 1
        if self.error is not None:
            raise self.error
        return Explained(misses=(SOFTMAX,), roof=MEMORY)


async def told(engine: Asked, *proposals: Proposal) -> Explained:
    return await silence.explain(cast(Opened, SimpleNamespace(engine=engine)), proposals)


async def test_the_engine_is_asked_where_nothing_is_offered_and_may_be_lost() -> None:
    right, faster = proposal(verdict=Verdict.CORRECT), proposal()
    assert (await told(Asked())).misses == (await told(Asked(), right)).misses == (SOFTMAX,)
    assert await told(Asked(WorkerLost("it died")), right) == Explained()
    late = replace(right, evaluation=replace(right.evaluation, status=EvalStatus.TIMED_OUT))
    for judged in ((right, faster), (late,)):  # an offer; a machine too busy to say
        engine = Asked()
        assert await told(engine, *judged) == Explained() and engine.times == 0


# --- places ------------------------------------------------------------------------------

FILE = '''"""A file."""
import os
import torch


def unused():
    return torch.sin(1)


@torch.no_grad()
def helper(x):
    return torch.cos(x)


class Model(torch.nn.Module):
    def forward(self, x):
        return helper(x)
'''


def sliced(text: str) -> str:
    found = analysis.analyze(Snapshot(uri=URI, text=text))
    target = analysis.find_target(found, "Model")
    assert target is not None
    program = analysis.slice_program(Snapshot(uri=URI, text=text), target)
    assert program is not None
    return program.source


def line(text: str, code: str) -> int:
    return next(at for at, line in enumerate(text.splitlines(), 1) if line.strip() == code)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("code", ["return torch.cos(x)", "return helper(x)", "@torch.no_grad()"])
def test_a_line_of_the_program_is_found_in_the_file(code: str, end: str) -> None:
    text = FILE.replace("\n", end)
    program = sliced(text)
    miss = replace(SOFTMAX, line=line(program, code))
    assert line(program, code) != line(FILE, code)
    assert place_misses([miss], program, text)[0].line == line(FILE, code)


def test_what_is_not_in_the_file_has_no_line() -> None:
    program = sliced(FILE)
    misses = (replace(SOFTMAX, line=line(program, "return helper(x)")), replace(SOFTMAX, line=None))
    found = place_misses(misses, program, FILE.replace("helper(x)", "helper(2 * x)"))
    assert [miss.line for miss in found] == [None, None]
    assert place_misses([replace(SOFTMAX, line=10**6)], program, FILE)[0].line is None


def test_a_definition_that_is_made_anew_is_the_last_one() -> None:
    text = FILE + "\n\n" + FILE.partition("\n\n\n")[2]
    program = sliced(text)
    found = place_misses([replace(SOFTMAX, line=line(program, "return helper(x)"))], program, text)[
        0
    ].line
    assert found == max(
        at for at, code in enumerate(text.splitlines(), 1) if code == "        return helper(x)"
    )


BRANCH = """
import torch


class Other(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class Model(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x


def get_inputs():
    return [torch.randn(4)]
"""


def capture_error(code: str, text: str = BRANCH) -> str:
    prepared = prepare(Job(text=text, path="/project/model.py", qualname="Model"))
    assert isinstance(prepared, PreparedJob)
    return str(locate_error(CaptureError(f"Model decides by values{code}", "move it"), prepared))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_refusal_names_the_line_inside_of_its_target(end: str) -> None:
    found = capture_error(": `if x.sum() > 0:`", BRANCH.replace("\n", end))
    assert found == "Model decides by values: `if x.sum() > 0:` (model.py:14) (move it)"


def test_a_line_that_is_cut_off_is_found_by_its_beginning() -> None:
    long = "return x + " + " + ".join(str(i) for i in range(60))
    text = BRANCH.replace("return x + 1", long)
    assert "(model.py:15)" in capture_error(f": `{long[:100]}`", text)


@pytest.mark.parametrize("code", ["", ": `return torch.sin(x)`", ": `return x`"])
def test_a_line_that_is_none_or_several_is_not_named(code: str) -> None:
    text = BRANCH.replace("return x + 1", "return x")
    assert capture_error(code, text) == f"Model decides by values{code} (move it)"


# --- the editor --------------------------------------------------------------------------


def opened(text: str) -> EditorSession:
    session = EditorSession(client="test 1")
    session.configure("/project", Settings(static_hints=False))
    session.open(snapshot(text), "/project", "model.py")
    session.analyzed(session.documents[URI].snapshot, analysis.analyze(snapshot(text)))
    return session


def test_a_hover_shows_near_misses_where_they_stand_now() -> None:
    code = next(line.strip() for line in TEXT.splitlines() if "torch.sum" in line)
    was = next(at for at, line in enumerate(TEXT.splitlines(), 1) if line.strip() == code)
    miss = replace(SOFTMAX, line=was, code=code)
    for above in (0, 3):
        text = "# a comment\n" * above + TEXT
        session = opened(text)
        session.learn(proposal().fingerprint, replace(SILENT, misses=(miss,), roof=MEMORY))
        found = session.hover(URI, target_of(text, "Model").name_span.start)
        assert found is not None
        head, empty, first, whole = found[1].split("\n")
        assert (
            head == "**Model**: nothing is offered; no skill applies to this program"
            and empty == ""
        )
        assert first.startswith(
            f"- line {was + above}, `{code}`: softmax (about 61% of the time): flash-"
        )
        assert first.endswith("*use the library's*") and whole.startswith(
            "- a whole call: at the memory's"
        )


def test_a_line_that_is_gone_has_no_number() -> None:
    assert misses.line_of(SOFTMAX, "x = 1\n") is None
    assert misses.line_of(SOFTMAX, "\n" * 20 + "    w = torch.softmax(s, -1)\n") == 21
    assert misses.markdown(SILENT, "x = 1\n")[0].startswith("- `w = torch.softmax(s, -1)`: softmax")


@pytest.mark.parametrize(("plain", "words"), [(False, "too large to check it"), (True, "refused")])
async def test_one_rewrite_without_a_kernel_hides_no_kernel_that_cannot_be_checked(
    monkeypatch: pytest.MonkeyPatch, plain: bool, words: str
) -> None:
    sites = [SimpleNamespace(skill="a", plain=True), SimpleNamespace(skill="b", plain=plain)]

    async def refusal(*_: object) -> str:
        return "refused"

    monkeypatch.setattr(silence, "rank_sites", lambda _: sites)
    monkeypatch.setattr(silence, "too_large", lambda _: True)
    monkeypatch.setattr(silence, "_refusal", refusal)
    one = SimpleNamespace(bench=SimpleNamespace(device="cpu"), capture=None, sites=sites)
    assert words in await silence._nothing_to_judge(cast(Opened, one))
