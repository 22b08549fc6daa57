"""Findings about a program: what a training script gets, and how they are shown, dismissed and
reported."""

import json

import pytest
from typer.testing import CliRunner

from kernel_lsp.analysis import SCRIPT_RULES, analyze
from kernel_lsp.commands.app import app
from kernel_lsp.config import Settings
from kernel_lsp.presenter.reports import findings_json, findings_sarif, findings_text
from kernel_lsp.records import Analysis, Finding, Snapshot, Span
from kernel_lsp.session import EditorSession, examine, fingerprint_of

FOLDER = "/w"
URI = "file:///w/train.py"

SCRIPT = '''"""A language model of one file, trained on one file of text."""

import math
import sys

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
block_size = 256


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, self.heads, -1).transpose(1, 2).chunk(3, dim=-1)
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:t, :t] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)  # written out
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, c))


class GPT(nn.Module):
    def __init__(self, vocabulary, width=768):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*[Attention(width, 6) for _ in range(6)])
        self.head = nn.Linear(width, 4 * 768)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1]).to(ids.device)  # made on the host
        return self.head(self.blocks(self.tokens(ids) + self.positions(positions)))


@torch.no_grad()
def generate(model, ids, count):
    for _ in range(count):
        logits = model(ids[:, -block_size:])  # the whole sequence
        token = torch.multinomial(F.softmax(logits[:, -1], dim=-1), 1)
        ids = torch.cat((ids, token), dim=1)
    return ids


def main(text):
    model = GPT(len(set(text))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)  # not fused
    loader = DataLoader(list(text), batch_size=32)  # no workers
    losses = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=False)  # zeros
        loss.backward()
        optimizer.step()
        losses.append(loss)  # with its graph
        print(f"loss {loss.item():.3f}")  # a wait
        torch.cuda.empty_cache()  # gives memory back
    return generate(model, x[:1], 100)


if __name__ == "__main__":
    main(open(sys.argv[1]).read())
'''

EXPECTED = {
    "KL301": "a wait",
    "KL302": "zeros",
    "KL303": "not fused",
    "KL304": "made on the host",
    "KL305": "no workers",
    "KL312": "gives memory back",
    "KL316": "with its graph",
    "KL319": "the whole sequence",
    "KL320": "written out",
}


def run(text: str = SCRIPT) -> Analysis:
    return analyze(Snapshot(uri=URI, text=text))


def line_of(text: str, finding: Finding) -> str:
    return text.splitlines()[finding.data["line"] - 1]


def opened(text: str = SCRIPT) -> EditorSession:
    session = EditorSession()
    session.configure(FOLDER, Settings(max_hints_per_file=100))
    snapshot = Snapshot(uri=URI, text=text, version=1)
    session.open(snapshot, FOLDER, "train.py")
    session.analyzed(snapshot, examine(snapshot))
    return session


def codes(session: EditorSession) -> list[str]:
    return [hint.code for hint in session.hints(URI) if hint.qualname is None]


def test_a_language_model_of_one_file_gets_what_costs_its_steps() -> None:
    found = {f.rule: line_of(SCRIPT, f) for f in run().findings if f.rule.startswith("KL3")}
    assert found.keys() == {*EXPECTED, "KL309"}
    assert all(found[rule].endswith(f"# {words}") for rule, words in EXPECTED.items())


def test_findings_about_the_program_have_no_target() -> None:
    script = {rule.id for rule in SCRIPT_RULES}
    for finding in run().findings:
        assert (finding.target is None) == (finding.rule in script)


def test_a_file_without_targets_has_findings() -> None:
    text = SCRIPT.replace("(nn.Module)", "").replace("@torch.no_grad()\n", "")
    analysis = run(text)
    assert "KL301" in {f.rule for f in analysis.findings}
    assert "Attention" not in {t.qualname for t in analysis.targets}


def test_the_mended_script_is_quiet() -> None:
    text = SCRIPT
    for old, new in (
        ('print(f"loss {loss.item():.3f}")', ""),
        ("set_to_none=False", ""),
        ("lr=3e-4", "lr=3e-4, fused=True"),
        (".shape[1]).to(ids.device)", ".shape[1], device=ids.device)"),
        ("batch_size=32", "batch_size=32, num_workers=4, pin_memory=True"),
        ("torch.cuda.empty_cache()", ""),
        ("append(loss)", "append(loss.detach())"),
        ("block_size = 256", 'torch.set_float32_matmul_precision("high")'),
        (
            "x.to(device), y.to(device)",
            "x.to(device, non_blocking=True), y.to(device, non_blocking=True)",
        ),
    ):
        assert old in text
        text = text.replace(old, new)
    assert {f.rule for f in run(text).findings if f.target is None} == {"KL319"}


@pytest.mark.parametrize(
    ("old", "new", "gone"),
    [
        ("    return generate", "    return generate", set()),
        ("# a wait", "# kernel-lsp: off KL301", {"KL301"}),
        ("def main", "# kernel-lsp: off KL301, KL316\ndef main", {"KL301", "KL316"}),
        ("import math", "# kernel-lsp: off KL319\nimport math", {"KL319"}),
    ],
)
def test_a_comment_silences_a_line_a_function_or_the_file(
    old: str, new: str, gone: set[str]
) -> None:
    text = SCRIPT.replace(old, new, 1)
    left = {f.rule for f in run(text).findings}
    assert {f.rule for f in run().findings} - left == gone


def test_off_above_a_function_or_the_file_silences_all_rules_in_it() -> None:
    inside = {"KL301", "KL302", "KL303", "KL305", "KL312", "KL316"}
    left = {f.rule for f in run(SCRIPT.replace("def main", "# kernel-lsp: off\ndef main")).findings}
    assert not left & inside and "KL304" in left
    assert run("# kernel-lsp: off\n" + SCRIPT) == Analysis()


def test_a_rule_that_crashes_costs_only_its_own_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(script: object) -> None:
        raise ValueError("no")

    broken = next(rule for rule in SCRIPT_RULES if rule.id == "KL301")
    replaced = type(broken)(**{**{n: getattr(broken, n) for n in broken.__slots__}, "check": crash})
    rules = tuple(replaced if rule is broken else rule for rule in SCRIPT_RULES)
    monkeypatch.setattr("kernel_lsp.analysis.SCRIPT_RULES", rules)
    analysis = run()
    assert {f.rule for f in analysis.findings} >= EXPECTED.keys() - {"KL301"}
    assert "rule KL301 failed on the file" in analysis.failures[0]


def test_a_kept_loss_is_mended_by_an_edit() -> None:
    (finding,) = (f for f in run().findings if f.rule == "KL316")
    (edit,) = finding.data["fix"]["edits"]
    mended = SCRIPT[: edit["start"]] + edit["new"] + SCRIPT[edit["end"] :]
    assert mended == SCRIPT.replace("losses.append(loss)", "losses.append(loss.detach())")


def test_the_editor_shows_them_and_measures_nothing_for_them() -> None:
    session = opened()
    assert set(codes(session)) >= EXPECTED.keys() - {"KL320"}
    document = session.documents[URI]
    place = SCRIPT.index("torch.cuda.empty_cache()")
    # Nothing that a job could be about.
    assert session.targets(URI, Span(start=place, end=place)) == []
    assert {lens.qualname for lens in session.lenses(URI)} == {
        t.qualname for t in document.analysis.targets
    }


def test_dismissing_one_is_remembered_for_its_text_and_its_file() -> None:
    session = opened()
    document = session.documents[URI]
    (finding,) = (f for f in document.analysis.findings if f.rule == "KL312")
    events = session.dismiss(
        URI, None, "KL312", "proposal", "style", fingerprint_of(document, finding)
    )
    assert [event.qualname for event in events] == [None]
    assert "KL312" not in codes(session) and "KL301" in codes(session)
    moved = Snapshot(uri=URI, text="# one line more\n" + SCRIPT, version=2)
    session.change(moved)
    session.analyzed(moved, examine(moved))
    assert "KL312" not in codes(session)
    other = "file:///w/other.py"
    snapshot = Snapshot(uri=other, text=SCRIPT, version=1)
    session.open(snapshot, FOLDER, "other.py")
    session.analyzed(snapshot, examine(snapshot))
    assert "KL312" in {hint.code for hint in session.hints(other)}


def test_reports_say_that_there_is_no_target() -> None:
    results = [("train.py", run())]
    assert "train.py:62:9: KL302 hint: zero_grad(set_to_none=False)" in findings_text(results)
    rows = json.loads(findings_json(results))["files"][0]["findings"]
    assert {row["target"] for row in rows if row["rule"] == "KL302"} == {None}
    (log,) = json.loads(findings_sarif(results))["runs"]
    places = {row["ruleId"]: row["locations"][0] for row in log["results"]}
    assert "logicalLocations" not in places["KL302"]
    assert places["KL320"]["logicalLocations"] == [{"fullyQualifiedName": "Attention"}]


def test_check_prints_them(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    result = CliRunner().invoke(app, ["check", str(path), "--fail-on", "hint"])
    assert result.exit_code == 1
    assert f"{path}:67:9: KL312 hint: torch.cuda.empty_cache()" in result.stdout
