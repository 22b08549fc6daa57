"""Deeper searches as an editor sees them: actions, commands, one question before code leaves the
machine.

With the host of faults: what is searched and how is tested with the real one
(test_search_flow.py)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from editor_client import EXAMPLE, PATIENCE_S, Editor, Launch, until

from kernel_lsp.consent import Consents

ORIGIN = "https://models.example.com"
REMOTE = {"policy": "openai", "endpoint": f"{ORIGIN}/v1", "background": False, "consent": "always"}
LOCAL = {"background": False, "consent": "always"}


def jobs(session: Editor) -> list[dict[str, Any]]:
    """As they reached the host."""
    path = session.data_dir / "jobs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def titles(session: Editor, uri: str) -> list[str]:
    return [action.title for action in await session.actions(uri)]


async def test_optimize_and_search_deeper_are_offered_side_by_side(launch: Launch) -> None:
    async with launch(fault="search", options=LOCAL) as session:
        uri = session.open("model.py", EXAMPLE)
        async with asyncio.timeout(PATIENCE_S):
            while not (first := await session.actions(uri)):  # noqa: ASYNC110 - until it is analyzed
                await asyncio.sleep(0.05)
        assert [a.title for a in first[:2]] == ["Optimize Model", "Search deeper for Model…"]
        assert [a.command.command for a in first[:2] if a.command] == [
            "kernel-lsp.optimize",
            "kernel-lsp.searchDeeper",
        ]
        await session.command("optimize", uri=uri, qualname="Model")
        await session.hint(uri)
        # Also when a rewrite is offered.
        assert "Search deeper for Model…" in await titles(session, uri)


async def test_a_search_and_a_quick_job_of_one_target_coexist_and_the_better_offer_stays(
    launch: Launch,
) -> None:
    async with launch(fault="search", options=LOCAL) as session:
        uri = session.open("model.py", EXAMPLE)
        started = await session.command(
            "searchDeeper",
            uri=uri,
            qualname="Model",
            mode="turns",
            candidates=12,
            seconds=60,
            fresh=True,
        )
        assert started["budget"]["candidates"] == 12
        await session.hint(uri, "3.00x")
        assert (await session.command("status"))["jobs"] == ["Model (search)"]
        assert "Stop searching for Model" in await titles(session, uri)
        await session.command("optimize", uri=uri, qualname="Model")
        await until(lambda: len(jobs(session)) == 2)
        await session.jobs("Model (search)")
        assert "3.00x" in (await session.rewrite(uri)).title  # what the quick job found is slower
        lenses = await session.command("listKernels", uri=uri)
        assert any(
            row["qualname"] == "Model" and row["state"] == "searching: round 1" for row in lenses
        )
        assert (await session.command("cancel", uri=uri, qualname="Model", kind="search"))[
            "cancelled"
        ] == 1
        await session.event("host_cancelled")
        await session.jobs()
        assert "3.00x" in (await session.rewrite(uri)).title
    plan, quick = jobs(session)[0]["search"], jobs(session)[1]["search"]
    assert (plan["mode"], plan["fresh"], plan["budget"]["seconds"], quick) == (
        "turns",
        True,
        60,
        None,
    )


BAD_LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "dream"}, "allowed: best, turns, evolve"),
    ({"candidates": 0}, "candidates = 0 is no number from 1 on"),
    ({"tokens": "many"}, "tokens = 'many'"),
    ({"seconds": True}, "seconds = True"),
]


async def test_a_limit_that_cannot_be_used_is_refused_in_words(launch: Launch) -> None:
    async with launch(fault="search", options=LOCAL) as session:
        uri = session.open("model.py", EXAMPLE)
        for arguments, words in BAD_LIMITS:
            with pytest.raises(Exception, match=words):
                await session.command("searchDeeper", uri=uri, qualname="Model", **arguments)
        assert jobs(session) == []


async def test_what_went_wrong_with_a_model_is_in_the_log_and_the_quick_result_is_offered(
    launch: Launch,
) -> None:
    async with launch(fault="noted", options=LOCAL) as session:
        uri = session.open("model.py", EXAMPLE)
        await session.command("searchDeeper", uri=uri, qualname="Model")
        await session.hint(uri)
        logged = [message.message for message in session.client.log_messages]
        assert "Model: openai:m was left out: 401" in logged


# --- before code leaves the machine -------------------------------------------------------------


async def test_code_goes_to_another_machine_only_after_one_question(launch: Launch) -> None:
    async with launch(fault="search", options=REMOTE) as session:
        uri = session.open("model.py", EXAMPLE)
        await session.command("searchDeeper", uri=uri, qualname="Model")
        await session.hint(uri)
        (question,) = session.questions
        assert ORIGIN in question.message
        assert [item.title for item in question.actions or []] == [
            "Show first", "Allow for this folder", "No",
        ]  # fmt: skip
        await session.command("cancel")
        await session.jobs()
        await session.command("optimize", uri=uri, qualname="Model")
        await until(lambda: len(jobs(session)) == 2)
        assert len(session.questions) == 1
        status = await session.command("status")
        assert (status["folders"][0]["remote"], status["folders"][0]["remote_allowed"]) == (
            ORIGIN,
            True,
        )
    assert [job["allowed_origin"] for job in jobs(session)] == [ORIGIN, ORIGIN]
    assert Consents(session.data_dir).allows_remote(session.folder, ORIGIN)


async def test_no_is_remembered_and_the_search_goes_on_without_the_model(launch: Launch) -> None:
    for _ in range(2):
        async with launch(fault="search", options=REMOTE, answer="No") as session:
            uri = session.open("model.py", EXAMPLE)
            await session.command("searchDeeper", uri=uri, qualname="Model")
            await session.hint(uri)
            asked = len(session.questions)
    assert [job["allowed_origin"] for job in jobs(session)] == [None, None]
    assert asked == 0  # the second session knew


async def test_the_prompt_can_be_read_first(launch: Launch) -> None:
    async with launch(fault="search", options=REMOTE, answer=["Show first", "No"]) as session:
        uri = session.open("model.py", EXAMPLE)
        await session.command("searchDeeper", uri=uri, qualname="Model")
        await session.hint(uri)
        first, second = session.questions
        assert [item.title for item in second.actions or []] == ["Allow for this folder", "No"]
        shown = session.data_dir / "reports" / "prompt-Model.md"
        assert shown.read_text() == "# What a model is sent"
        again = await session.command("showPrompt", uri=uri, qualname="Model")
        assert (again["prompt"], again["path"]) == (shown.read_text(), str(shown))
    assert first.message == second.message


async def test_background_jobs_never_ask_and_never_may(launch: Launch) -> None:
    async with launch(fault="offer", options={**REMOTE, "background": True}) as session:
        uri = session.open("model.py", EXAMPLE)
        await session.hint(uri)
        assert session.questions == []
    assert [(job["background"], job["allowed_origin"]) for job in jobs(session)][:1] == [
        (True, None)
    ]


async def test_the_answer_can_be_given_by_a_command(launch: Launch) -> None:
    async with launch(fault="search", options=REMOTE) as session:
        uri = session.open("model.py", EXAMPLE)
        folder = str(session.folder)
        given = await session.command(
            "allowRemote", folder=folder, origin=f"{ORIGIN}/v1", answer=False
        )
        assert (given["origin"], given["allowed"]) == (ORIGIN, False)
        await session.command("searchDeeper", uri=uri, qualname="Model")
        await session.hint(uri)
        assert session.questions == []
        with pytest.raises(Exception, match="neither true nor false"):
            await session.command("allowRemote", folder=folder, origin=ORIGIN, answer="perhaps")
    stored = json.loads((session.data_dir / "consent.json").read_text())
    assert stored[folder]["remote"] == {ORIGIN: 0}
