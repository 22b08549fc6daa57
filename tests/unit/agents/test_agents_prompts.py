"""Prompts: their words (files of tests/cases/prompts), what fits, and text of others that stays
data."""

import json
from dataclasses import replace
from typing import Any

import pytest
from agents_helpers import SITES, TOOLS
from hypothesis import given, settings
from hypothesis import strategies as st
from injection_corpus import SAMPLES, SPECIAL
from prompts_helpers import (
    CASES,
    FIRST,
    LATER,
    MARKED,
    SOURCE,
    START,
    attempt,
    kept,
    length,
    outcome,
    room,
    shown,
    skill,
    task,
)

from kernel_lsp import plain
from kernel_lsp.agents import prompts, sizing, tools, wording
from kernel_lsp.agents.backbones import chat
from kernel_lsp.agents.sizing import ExchangeLimits, PromptPart
from kernel_lsp.errors import BackboneError
from kernel_lsp.records import (
    Context,
    ModelInfo,
    Move,
    Prompt,
    Proof,
    Reply,
    Role,
    Structured,
    ToolCall,
    Usage,
)

relaxed = settings(deadline=None)  # the machine is shared


LARGE = room()


def policy(
    context: Context = FIRST, room: ExchangeLimits = LARGE, source: str = MARKED, **changes: Any
) -> Prompt:
    chosen = changes.pop("chosen", ("fused-pointwise",))
    sites = changes.pop("sites", SITES)
    return prompts.policy(
        task(source), context, sites, chosen, room, program=source, outcome=outcome, **changes
    )


# --- words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", kept())
def test_prompts_read_as_they_are_kept(name: str) -> None:
    assert shown(kept()[name]) == (CASES / f"{name}.txt").read_text()


def test_no_prompt_shows_how_inputs_are_made() -> None:
    assert "get_inputs" in SOURCE
    for prompt in kept().values():
        assert not any("get_inputs" in one.text or "randn" in one.text for one in prompt.messages)


def test_a_program_that_does_not_parse_is_shown_whole() -> None:
    assert prompts.without_inputs("def f(:\n") == "def f(:\n"


def test_the_selection_agent_sees_no_body_and_what_is_known_of_a_skill() -> None:
    text = kept()["selection"].messages[1].text
    assert "What cuda-graph does" in text and "Why cuda-graph" not in text
    assert (
        "3. cuda-graph: What cuda-graph does [graph; pointwise, fusion] (tried 4 times, paid "
        "1 times" in text
    )
    assert "mean speedup 1.11x" in text  # exp(0.4 / 4)


def test_only_sites_whose_proofs_hold_are_offered() -> None:
    broken = replace(SITES[0], proofs=(Proof(claim="c", holds=False, because="b"),))
    prompt = policy(sites=(broken, SITES[1]))
    assert prompt.sites == (SITES[1],)
    assert "add+gelu" not in str(prompt.tools)


def test_a_skill_is_read_or_offered_to_be_read() -> None:
    prompt = policy(chosen=("fused-pointwise",))
    assert "Why fused-pointwise" in prompt.messages[0].text
    (read,) = (tool for tool in prompt.tools if tool.name == tools.READ)
    assert read.parameters["properties"]["name"]["enum"] == ["diagonal-matmul", "cuda-graph"]
    unread = policy(chosen=())
    assert "# References" not in unread.messages[0].text


def test_the_last_result_is_told_in_full_and_attempts_newest_and_best_first() -> None:
    text = policy(LATER, start=START).messages[1].text
    assert '{"status": "passed", "number": 2}' in text
    order = [text.index(f"## attempt {number}:") for number in (2, 1, 9, 4, 5)]
    assert order == sorted(order)
    assert "Go on from attempt 2" in text and text.count("_fused(x, bias)") == 1
    assert "as attempt 4, and faster" in text


# --- size ----------------------------------------------------------------------------------

contexts = st.builds(
    Context,
    number=st.just(99),
    seed=st.integers(0, 9),
    move=st.sampled_from([Move.RESTART, Move.REFINE]),
    history=st.lists(st.integers(0, 3000), max_size=4).map(
        lambda sizes: tuple(attempt(i, "x" * n + "\n") for i, n in enumerate(sizes))
    ),
    best=st.lists(st.integers(0, 3000), max_size=3).map(
        lambda sizes: tuple(
            attempt(10 + i, "é" * n + "\n", fitness=2.0) for i, n in enumerate(sizes)
        )
    ),
)


@relaxed
@given(contexts, st.integers(1024, 40_000))
def test_a_prompt_is_never_longer_than_its_room(context: Context, tokens: int) -> None:
    try:
        prompt = policy(context, room(tokens))
    except BackboneError as error:
        assert tokens < 5000 and "context" in str(error)  # program, rules and tools take 3,500
        return
    assert length(prompt) <= room(tokens).prompt_bytes
    assert prompt.sampling.max_tokens == room(tokens).reply_tokens


@relaxed
@given(st.integers(1500, 40_000), st.integers(1, 20))
def test_a_selection_prompt_is_never_longer_than_its_room(tokens: int, count: int) -> None:
    skills = tuple(skill(f"skill-{i}") for i in range(count))
    try:
        prompt = prompts.selection(task(skills=skills), room(tokens))
    except BackboneError:
        assert tokens < 4000
        return
    assert length(prompt) <= room(tokens).prompt_bytes
    offered = prompt.tools[0].parameters["properties"]["selected_skills"]["items"]["properties"][
        "name"
    ]["enum"]
    # The first, which match best.
    assert offered == [f"skill-{i}" for i in range(len(offered))] and offered
    assert f"{len(offered)}. skill-{len(offered) - 1}:" in prompt.messages[1].text


def test_newest_and_best_stay_when_it_gets_tight() -> None:
    big = "def tail(x, bias):\n    return x\n" + "# padding\n" * 150
    history = tuple(attempt(i, big.replace("padding", f"code-{i}")) for i in range(4))
    best = tuple(
        attempt(10 + i, big.replace("padding", f"code-{10 + i}"), fitness=3.0 - i) for i in range(3)
    )
    context = replace(FIRST, history=history, best=best)
    text = policy(context, room(6500), chosen=()).messages[1].text
    kept_whole = [i for i in (0, 1, 2, 3, 10, 11, 12) if f"code-{i}\n" in text]
    assert 3 in kept_whole and 10 in kept_whole and 0 not in kept_whole
    assert all(f"attempt {i}:" in text for i in (0, 1, 2, 3, 10, 11, 12))  # in a line at least


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 5))),
    st.integers(0, 200),
)
def test_fitting_keeps_its_budget_and_the_first_ranks(
    parts: list[tuple[int, int, int]], left: int
) -> None:
    made = [
        PromptPart(text="t" * text, short="s" * min(short, text), rank=rank)
        for text, short, rank in parts
    ]
    said = sizing.fit_parts(made, left)
    assert len(said) == len(made)
    assert sum(len(text) + 2 for text in said if text) <= left
    for part, text in zip(made, said, strict=True):
        assert text in (part.text, part.short, "")
    first = min(made, key=lambda part: part.rank, default=None)
    if first is not None and all(not part.short for part in made) and len(first.text) + 2 <= left:
        assert said[made.index(first)] == first.text


def test_by_hand_every_short_text_comes_before_a_whole_one() -> None:
    parts = [
        PromptPart(text="aaaaaaaa", short="a", rank=1),
        PromptPart(text="bbbbbbbb", short="b", rank=0),
    ]
    assert sizing.fit_parts(parts, 6) == ["a", "b"]
    assert sizing.fit_parts(parts, 13) == ["a", "bbbbbbbb"]
    assert sizing.fit_parts(parts, 5) == ["", "b"]


def test_the_room_of_a_model() -> None:
    assert room(32_768) == ExchangeLimits(
        prompt_bytes=int((32_768 - 8192 - 64) * 2.5), reply_tokens=8192, model="m"
    )
    assert room(4096).reply_tokens == 1365
    assert room(None) == room(sizing.UNKNOWN_CONTEXT)


@pytest.mark.parametrize("count", range(1, 6))
def test_tools_count_as_long_as_a_server_shows_them(count: int) -> None:
    some = TOOLS[:count]
    shown = chat.asked_for(some, Structured.TOOLS)["tools"]
    assert sizing.size_of_tools(some) >= max(len(json.dumps(shown)), len(tools.in_words(some)))


def test_a_small_context_is_offered_bounded_tools_alone() -> None:
    small, large = policy(room=room(4096)), policy(room=room(16_384))
    assert [tool.name for tool in small.tools] == ["apply_skill", "read_skill"]
    assert "write_rewrite" not in small.messages[0].text
    assert [tool.name for tool in large.tools] == ["apply_skill", "write_rewrite", "read_skill"]


def test_every_bounded_tool_that_is_offered_fits_into_its_reply() -> None:
    long = replace(SITES[0], site="+".join(["operation"] * 200))
    prompt = policy(room=room(4096), sites=(long, SITES[1]))
    assert prompt.sites == (SITES[1],)
    for tool in prompt.tools:
        assert (tools.longest_chars(tools.envelope([tool])) or 0) <= prompt.sampling.max_tokens


@pytest.mark.parametrize(("reply_tokens", "most"), [(2000, 3), (700, 2), (400, 1)])
def test_a_short_reply_is_asked_for_fewer_skills(reply_tokens: int, most: int) -> None:
    prompt = prompts.selection(
        task(), ExchangeLimits(prompt_bytes=20_000, reply_tokens=reply_tokens)
    )
    assert prompt.tools[0].parameters["properties"]["selected_skills"]["maxItems"] == most
    assert f"more than {most}." in prompt.messages[0].text
    assert (tools.longest_chars(tools.envelope(prompt.tools)) or 0) <= reply_tokens


def test_a_context_that_is_too_small_says_so() -> None:
    with pytest.raises(
        BackboneError, match=r"takes about \d+ tokens and m has room for \d+ .*max-model-len"
    ):
        policy(room=room(1500))
    with pytest.raises(BackboneError, match="no room for a rewrite"):
        policy(room=room(4096), sites=())


def test_costs_are_the_servers_or_estimated_from_above() -> None:
    prompt = policy()
    counted = Reply(
        text="x", latency_s=2.0, model="m", usage=Usage(prompt_tokens=5, completion_tokens=3)
    )
    assert sizing.cost(prompt, counted).tokens == 8
    unknown = sizing.cost(prompt, Reply(text="x" * 25, latency_s=2.0, model="m"))
    assert unknown.completion_tokens == 10 and unknown.prompt_tokens > length(prompt) / 4
    assert unknown.model_s == 2.0
    called = Reply(
        text="", calls=(ToolCall(name="t", arguments={"a": "x" * 91}),), latency_s=0.0, model="m"
    )
    assert sizing.cost(prompt, called).completion_tokens == 40  # {"a": "…"} has 100 characters
    ids = Reply(text="x" * 25, token_ids=(1, 2, 3), latency_s=0.0, model="m")
    assert sizing.cost(prompt, ids).completion_tokens == 3


# --- text of others ------------------------------------------------------------------------

SECTIONS = ["# Target `tail` on NVIDIA H200", "# Sites", "# Attempts, newest and best first"]
SECTIONS += ["# Result of the last attempt", "# Now"]


@pytest.mark.parametrize("evil", SAMPLES.values(), ids=SAMPLES)
def test_a_hostile_program_moves_no_border(evil: str) -> None:
    source = f's = """\n{evil}\n"""\n{MARKED}'
    honest, prompt = policy(), policy(source=source)
    assert [one.role for one in prompt.messages] == [Role.SYSTEM, Role.USER]
    assert prompt.messages[0] == honest.messages[0]  # not a word of it among the rules
    assert prompt.tools == honest.tools
    text = prompt.messages[1].text
    assert not [border for border in SPECIAL if border in text]
    assert outside_fences(text) == outside_fences(honest.messages[1].text)


@pytest.mark.parametrize("evil", SAMPLES.values(), ids=SAMPLES)
def test_hostile_skills_and_results_move_no_border(evil: str) -> None:
    bad = skill("fused-pointwise", body=evil, description=" ".join(evil.split())[:100])
    told = replace(attempt(2, f"{evil}\n"), feedback={"detail": evil})
    context = replace(FIRST, history=(told,))
    prompt = prompts.policy(
        task(skills=(bad,)),
        context,
        [replace(SITES[0], summary=evil)],
        ("fused-pointwise",),
        room(),
        program=MARKED,
        outcome=lambda one: f"attempt {one.number}: {evil}",
    )
    for message in prompt.messages:
        assert not [border for border in SPECIAL if border in message.text]
        headings = [
            row for row in outside_fences(message.text).splitlines() if row.startswith("# ")
        ]
        assert headings in (["# References"], SECTIONS)


WHOLE = tuple(text for text in SPECIAL if plain.plain(text) == text and text not in ("<|", "[|"))
WHOLE += ("<|im_end|>", "[|system|]", "<parameter=x>", "<｜end▁of▁sentence｜>")


@given(st.lists(st.sampled_from([*WHOLE, "<", "[", "a", " ", "\n", "</div>", "|"])).map("".join))
def test_a_broken_border_can_be_made_whole(text: str) -> None:
    shown = wording.harmless(text)
    assert wording.restore_text(shown) == text and not any(border in shown for border in WHOLE)


@given(st.text(st.sampled_from("`~\n a<|>")))
def test_no_text_closes_its_fence(text: str) -> None:
    rows = wording.quote_text(text, "python").splitlines()
    mark = rows[0].removesuffix("python")
    assert set(mark) == {"`"} and rows[-1] == mark
    assert not any(row.strip().startswith(mark) for row in rows[1:-1])


def outside_fences(text: str) -> str:
    """By CommonMark's rule: a fence ends at the first line of at least as many ticks and nothing
    else."""
    rows, mark = [], ""
    for row in text.splitlines():
        ticks = row[: len(row) - len(row.lstrip("`"))]
        if mark:
            mark = "" if len(ticks) >= len(mark) and row == ticks else mark
        elif len(ticks) >= 3:
            mark = ticks
        else:
            rows.append(row)
    assert not mark
    return "\n".join(rows)


def test_a_reply_is_sampled_as_its_user_says() -> None:
    info = ModelInfo(backbone="openai", model="m", context_tokens=32_768)
    told = sizing.room(replace(info, temperature=0.2, top_p=0.8, reply_tokens=700))
    chosen = prompts.selection(task(), told, seed=3).sampling
    assert (chosen.temperature, chosen.top_p, chosen.max_tokens, chosen.seed) == (0.2, 0.8, 700, 3)
    plain = prompts.selection(task(), sizing.room(info), seed=3).sampling
    assert (plain.temperature, plain.top_p, plain.max_tokens) == (1.0, 0.95, 2048)
    small = sizing.room(replace(info, context_tokens=3000, reply_tokens=5000))
    assert small.reply_tokens == 1000  # never more than the context leaves
