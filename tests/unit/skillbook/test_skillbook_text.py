"""What `skills` and `sessions` print: everything a person needs, in a line each; the same as
JSON."""

import json
import math
from dataclasses import replace

from kernel_lsp.presenter import library, sessions
from kernel_lsp.records import (
    ArmStats,
    Bottleneck,
    Event,
    EventKind,
    SessionSummary,
    Skill,
    SkillProblem,
)

FUSE = Skill(
    name="fuse-tail",
    description="Fuse a chain.",
    scope="graph",
    tags=("pointwise", "fusion"),
    version=2,
    body="## Motivation\nMemory.\n",
    path="/skills/fuse-tail",
    executable=True,
)
PROBLEM = SkillProblem(path="/s/x/SKILL.md", field="name", cause="missing", remedy="add `name:`")
SESSION = SessionSummary(
    id="0123456789ab",
    client="Neovim 0.10",
    folder="enigma-0a1b2c3d4e5f",
    version="0.1.0",
    started="2026-01-02T03:04:05.678+00:00",
    ended=None,
    counts={"offered": 3, "accepted": 2, "reverted": 1, "evaluated": 9},
)


def event(kind: EventKind, **data: object) -> Event:
    return Event(
        kind=kind,
        proposal="p" * 16,
        time="2026-01-02T03:04:05.678+00:00",
        path="src/net.py",
        qualname="Net",
        data=data,
    )


def test_the_list_of_skills_is_aligned_and_ends_with_what_was_left_out() -> None:
    text = library.skills_text([FUSE], [PROBLEM])
    header, row, *rest = text.splitlines()
    assert header.index("description") == row.index("Fuse a chain.")
    assert row.split()[:5] == ["fuse-tail", "graph", "rewrites", "2", "built-in"]
    assert rest == [
        "",
        "left out because of 1 problem:",
        "/s/x/SKILL.md: name: missing (add `name:`)",
    ]


def test_json_of_skills_has_a_schema_version_and_no_bodies_in_lists() -> None:
    listed = json.loads(library.skills_json([FUSE], [PROBLEM]))
    assert listed["schema_version"] == 1 and "body" not in listed["skills"][0]
    assert listed["problems"][0]["remedy"] == "add `name:`"
    assert json.loads(library.skill_json(FUSE))["skill"]["body"] == FUSE.body


def test_a_skill_is_shown_whole() -> None:
    text = library.skill_text(FUSE)
    assert text.startswith("# fuse-tail\n\nFuse a chain.") and text.endswith(
        "## Motivation\nMemory."
    )
    assert "version 2" in text and "/skills/fuse-tail" in text and "pointwise, fusion" in text


def test_lint_says_each_problem_and_how_much_was_checked() -> None:
    assert library.lint_text([], num_skills=14) == "14 skills checked, no problems"
    text = library.lint_text([PROBLEM], num_skills=1)
    assert text.splitlines() == [str(PROBLEM), "1 skill checked, 1 problem in 1 file"]
    assert json.loads(library.lint_json([PROBLEM], num_skills=1))["num_skills"] == 1


def test_the_list_of_sessions_counts_what_matters() -> None:
    header, row = sessions.sessions_text([SESSION]).splitlines()
    assert header.index("folder") == row.index("enigma-")
    assert row.split()[-5:] == ["3", "2", "0", "1", "0"] and "2026-01-02 03:04:05" in row
    assert sessions.sessions_text([]) == "the journal is empty"
    assert json.loads(sessions.sessions_json([SESSION]))["sessions"][0]["counts"]["evaluated"] == 9


def test_a_session_shows_its_events_with_what_is_worth_knowing() -> None:
    unread = replace(SESSION, counts={})
    text = sessions.session_text(
        unread,
        [
            event(EventKind.REFUSED, client_said={"applied": True}),
            event(EventKind.DISMISSED, reason="style", scope="file"),
            event(EventKind.MODIFIED, by="q" * 16),
            event(EventKind.REVERTED, was_kept=True),
            event(EventKind.KEPT_COMMITTED, because="HEAD has it"),
            event(EventKind.OFFERED),
        ],
    )
    notes = [
        "applied=True",
        "style (scope file)",
        "by proposal qqqq",
        "after it had been saved",
        "HEAD has it",
        "Net",
    ]
    lines = text.splitlines()[4:]
    assert all(note in line for note, line in zip(notes, lines, strict=True))
    assert "not ended" in text and "src/net.py::Net" in text
    assert sessions.session_text(unread, []).endswith("no events")
    assert (
        len(json.loads(sessions.session_json(SESSION, [event(EventKind.OFFERED)]))["events"]) == 1
    )


def test_forgetting_says_how_much() -> None:
    assert sessions.forgotten_text(sessions=1, events=2, proposals=3, files=0, recordings=0) == (
        "removed: 2 events, 3 proposals, 1 sessions"
    )
    assert "4 files" in sessions.forgotten_text(
        sessions=1, events=2, proposals=3, files=4, recordings=1
    )
    told = json.loads(
        sessions.forgotten_json(sessions=1, events=2, proposals=3, files=4, recordings=1)
    )
    assert told["forgotten"]["events"] == 2


def test_what_searches_have_learned_of_a_skill_is_in_its_row() -> None:
    memory = ArmStats(
        skill=FUSE.name,
        bottleneck=Bottleneck.MEMORY,
        device="cuda:9.0",
        tries=3,
        wins=1,
        gain_sum=math.log(8),
    )
    other = replace(memory, bottleneck=Bottleneck.LAUNCH, tries=3, wins=0, gain_sum=0.0)
    row = dict(zip(library.COLUMNS, library.skill_row(FUSE, [memory, other]), strict=True))
    assert (row["tries"], row["wins"], row["mean gain"]) == ("6", "1", "1.41x")  # 8 ** (1 / 6)
    (listed,) = json.loads(library.skills_json([FUSE], (), [memory, other]))["skills"]
    assert [(arm["bottleneck"], arm["wins"]) for arm in listed["learned"]] == [
        ("memory", 1),
        ("launch", 0),
    ]
    assert library.skill_row(FUSE)[5:8] == ("0", "0", "-")
