"""The report: what it counts, that nothing of it is loaded from elsewhere, and that a browser
shows it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from library_helpers import lesson, verification
from typer.testing import CliRunner

from kernel_lsp.commands.app import app
from kernel_lsp.journal import Journal
from kernel_lsp.presenter import charts, pictures, report
from kernel_lsp.presenter.report import ReportFacts, Version
from kernel_lsp.records import (
    Event,
    EventKind,
    KernelTime,
    LearnedSkill,
    Profile,
    Proposal,
    Standing,
    Timing,
    UsageStats,
    Verdict,
)
from tests.unit.library.test_library_usage import proposal

EMPTY = ReportFacts(made="2026-11-21 12:00", version="0.1.0")
HOSTILE = "<script>alert('x')</script>"


def event(kind: EventKind, name: str, day: int) -> Event:
    return Event(kind=kind, proposal=name, time=f"2026-11-{day:02d}T12:00:00.000+00:00")


def offer(name: str, speed: float) -> Proposal:
    found = proposal(name, "plan/2", speed, Verdict.FASTER)
    return replace(found, candidate=replace(found.candidate, summary=f"fuse {HOSTILE}"))


def full() -> ReportFacts:
    """Five offers; three are accepted, two of them kept, one kept and reverted later."""
    events = [event(EventKind.OFFERED, name, 10 + n) for n, name in enumerate("abcde")]
    events += [event(EventKind.OFFERED, "a", 16), event(EventKind.DISMISSED, "e", 15)]
    events += [event(EventKind.ACCEPTED, name, 15) for name in "abc"]
    events += [event(EventKind.KEPT, name, 16) for name in "ab"]
    events += [event(EventKind.KEPT_COMMITTED, "a", 17), event(EventKind.REVERTED, "b", 18)]
    papers = LearnedSkill(
        name=lesson().draft.name,
        standing=Standing.VERIFIED,
        origin=lesson().origin,
        reason="uplift",
        verifications=(verification(),),
    )
    curve = [
        {"step": n, "reward/policy": n / 10, "reward/selection": n / 20, "loss": 1 / (n + 1)}
        for n in range(20)
    ]
    told = {"mean": 0.96, "low": 0.94, "high": 0.98}
    return ReportFacts(
        made="2026-11-21 12:00",
        version="0.1.0",
        events=tuple(events),
        proposals=tuple(offer(name, 1.2 + n / 2) for n, name in enumerate("abcde")),
        learned=(
            papers,
            replace(papers, name=f"draft-{HOSTILE}", standing=Standing.STAGED, verifications=()),
        ),
        usage=(UsageStats(skill=papers.name, hardware="cuda:sm_90", uses=8, wins=5, pairs=3),),
        library=(
            Version(
                number=1, created="2026-11-18T09:00:00+00:00", action="promote", in_use=1, retired=0
            ),
            Version(
                number=2, created="2026-11-20T09:00:00+00:00", action="promote", in_use=3, retired=1
            ),
        ),
        curves={"h200-plan/rl": curve, "cpu-smoke/sft": []},
        policies={
            "held-out": {
                "tasks": 40,
                "first_over_best": told,
                "rule_over_best": {"mean": 0.81, "low": 0.78, "high": 0.84},
            }
        },
    )


class Page(HTMLParser):
    """Cells of the tables, captions, and everything that would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attributes if name in ("src", "href", "xlink:href")
        ]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def test_the_page_opens_with_what_was_gained() -> None:
    """Of what was kept and stayed: one of the two that were kept was taken back."""
    assert "1 rewrite stays in your code: 1.20x" in report.page(full())
    assert "No rewrite has been kept so far." in report.page(EMPTY)


def test_suggestions_count_once_whatever_happened_how_often() -> None:
    rows = {row[0]: row[1:] for row in Page(report.page(full())).rows}
    assert rows["offered"] == ["5", "100%"]
    assert rows["accepted"] == ["3", "60%"]
    assert rows["kept"] == ["2", "40%"]
    assert rows["reverted"] == ["1", "20%"]
    assert rows["dismissed"] == ["1", "20%"]


def test_every_offer_stands_with_its_interval_and_its_fate() -> None:
    rows = [row for row in Page(report.page(full())).rows if row[0].startswith("Model")]
    assert [row[2] for row in rows] == [
        f"{v:.2f}x ({v * 0.9:.2f} to {v * 1.1:.2f})" for v in (1.2, 1.7, 2.2, 2.7, 3.2)
    ]
    assert [row[3] for row in rows] == ["kept", "reverted", "accepted", "offered", "dismissed"]


def test_nothing_is_loaded_or_run_and_no_text_becomes_markup() -> None:
    page = Page(report.page(full()))
    assert all(link.startswith("#") for link in page.links)
    assert "script" not in page.tags and "img" not in page.tags and "link" not in page.tags
    assert any(HOSTILE in cell for row in page.rows for cell in row)


def test_plots_are_whole_svg_and_the_same_for_the_same_data() -> None:
    text = report.page(full())
    drawn = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(drawn) == 8
    for one in drawn:
        ElementTree.fromstring(one)
    assert report.page(full()) == text


def test_a_call_is_drawn_with_its_least_time_and_its_parts() -> None:
    """Names may hold what plots take for mathematics, or begin as what legends leave out."""
    rows = tuple(
        KernelTime(name=name, count=1, us=us, own=False)
        for name, us in (("_fused_$x$_kernel", 40.0), ("a$b", 10.0))
    )
    profiles = tuple(
        Profile(provider=provider, kernels=rows, us=60.0, busy_us=60.0, gaps_us=0.0)
        for provider in ("eager", "candidate")
    )
    found = offer("a", 2.0)
    judged = replace(found.evaluation, profiles=profiles, least_ms=0.0125)
    chart = pictures.chart_of(replace(found, evaluation=judged))
    assert chart.parts_us["eager"] == {"_fused_$x$_kernel": 40.0, "a$b": 10.0, "others": 10.0}
    drawn = pictures.svg([replace(found, evaluation=judged), found])
    assert drawn is not None
    words = "".join(ElementTree.fromstring(drawn).itertext())
    for word in ("_fused_$x$_kernel", "a$b", "others", "0.0125 ms at least", "candidate"):
        assert word in words, word
    assert pictures.svg([]) is None


def test_original_and_candidate_stand_under_the_roofline_with_the_same_work() -> None:
    seen = Profile(provider="eager", kernels=(), us=60.0, busy_us=60.0, gaps_us=0.0)
    profiles = (
        replace(seen, operations=8e9, moved_bytes=4e9),
        replace(seen, provider="candidate", moved_bytes=1e9),
    )
    found = offer("a", 2.0)
    timings = tuple(
        Timing(provider=name, median_ms=ms, p20_ms=ms, p80_ms=ms, num_reps=9, cold_cache=True)
        for name, ms in (("eager", 4.0), ("candidate", 2.0))
    )
    judged = replace(
        found.evaluation,
        profiles=profiles,
        timings=timings,
        device_timings=(),
        device="cuda",
        device_name="NVIDIA H200",
        environment={"capability": "9.0"},
    )
    chart = pictures.chart_of(replace(found, evaluation=judged))
    assert chart.roof is not None and chart.roof.device.startswith("an H200")
    assert [(p.provider, p.intensity, p.operations_per_s) for p in chart.roof.points] == [
        ("original", 2.0, 2e12),
        ("candidate", 8.0, 4e12),
    ]
    drawn = pictures.svg([replace(found, evaluation=judged)])
    assert drawn is not None and "an H200" in drawn and ">original<" in drawn
    unknown = replace(judged, profiles=(replace(profiles[0], operations=None), profiles[1]))
    assert pictures.chart_of(replace(found, evaluation=unknown)).roof is None
    alone = replace(judged, profiles=(profiles[0], replace(profiles[1], moved_bytes=None)))
    roof = pictures.chart_of(replace(found, evaluation=alone)).roof
    assert roof is not None and [point.provider for point in roof.points] == ["original"]


def test_without_data_every_section_says_what_would_fill_it() -> None:
    page = report.page(EMPTY)
    assert page.count('class="note"') == 6 and "<svg" not in page and "<table" not in page


def test_without_matplotlib_the_tables_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    with_plots = Page(report.page(full())).rows
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = report.page(full())
    assert "<svg" not in text and "pip install matplotlib" in text
    assert Page(text).rows == with_plots


def test_days_without_anything_are_there_and_a_long_journal_is_cut() -> None:
    events = [event(EventKind.OFFERED, "a", 3), event(EventKind.OFFERED, "b", 6)]
    assert {day: dict(counts) for day, counts in report._per_day(events).items()} == {
        "2026-11-03": {"offered": 1},
        "2026-11-04": {},
        "2026-11-05": {},
        "2026-11-06": {"offered": 1},
    }
    long_ago = replace(events[0], time="1999-01-01T00:00:00+00:00")
    assert len(report._per_day([long_ago, events[1]])) == report.MAX_DAYS


@pytest.mark.parametrize("values", [{"a": 0}, {"a": 1, "b" * 80: 3}])
def test_odd_counts_are_drawn(values: dict[str, int]) -> None:
    assert charts.bars(values, {})


# --- the command --------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["report", *arguments])
    return found.exit_code, found.output


def test_the_command_reads_a_run_that_was_killed_and_an_evaluation(home: Path) -> None:
    (home / "rl").mkdir()
    lines = [
        '{"step": 1, "loss": 2.0, "reward/policy": NaN}',
        '{"step": 2, "loss": 1.0}',
        '{"step": 3, "lo',
    ]
    (home / "rl" / "curve.jsonl").write_text("\n".join(lines))
    told = {"mean": 1.0, "low": 0.9, "high": 1.1}
    (home / "eval.json").write_text(
        json.dumps({"tasks": 9, "first_over_best": told, "rule_over_best": told})
    )
    code, output = run("--run", "rl", "--policy", "eval.json", "--json")
    assert code == 0, output
    page = (home / "report.html").read_text()
    assert "2 steps logged" in page and "eval: policy" in page


def test_the_command_tells_what_the_journal_has(home: Path) -> None:
    with Journal.open(home / "data" / "journal.db") as journal:
        for name in "ab":
            journal.save(offer(name, 2.0), folder=str(home), path="m.py", keep_source=False)
        for number, kind in enumerate((EventKind.OFFERED, EventKind.ACCEPTED, EventKind.KEPT)):
            journal.record([replace(event(kind, "a", 10 + number), folder=str(home), path="m.py")])
    code, output = run("--json")
    assert code == 0 and json.loads(output[output.index("{") :])["offered"] == 1
    rows = {row[0]: row[1:] for row in Page((home / "report.html").read_text()).rows}
    assert rows["kept"] == ["1", "100%"] and rows["Model · cpu"][-1] == "kept"


@pytest.mark.parametrize(
    "arguments", [("--run", "nowhere"), ("--policy", "bad.json"), ("--out", "no/such/r.html")]
)
def test_what_cannot_be_read_or_written_is_said(home: Path, arguments: tuple[str, str]) -> None:
    (home / "bad.json").write_text("[]")
    code, output = run(*arguments)
    assert code == 2 and "error" in output and "Traceback" not in output


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize("facts", [EMPTY, full()], ids=["empty", "full"])
def test_a_browser_shows_it(tmp_path: Path, facts: ReportFacts) -> None:
    """A real browser draws it; a page that it cannot read is a blank picture of 8 kB."""
    (tmp_path / "report.html").write_text(report.page(facts))
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile")
    picture = f"--screenshot={tmp_path}/page.png"
    command = [
        "chromium",
        *flags,
        "--window-size=1000,4200",
        picture,
        f"file://{tmp_path}/report.html",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_a_kernel_s_name_cannot_break_a_picture() -> None:
    """A control character is no XML: the page would not be shown."""
    from xml.dom.minidom import parseString

    name = "nul\x00\x1b[31mred\u202e<script>"
    chart = charts.CallChart(
        label=name, times_ms={"eager": 1.0}, least_ms=None, parts_us={"eager": {name: 5.0}}
    )
    drawn = charts.calls([chart])
    assert drawn is not None and "<script" not in drawn and "\u202e" not in drawn
    parseString(drawn)
