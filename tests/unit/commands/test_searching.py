"""Flags become a plan for a search; a summary becomes lines; who proposed a candidate is one
line."""

from pathlib import Path

import pytest

from kernel_lsp.commands import searching
from kernel_lsp.commands.searching import SearchChoice
from kernel_lsp.config import Settings
from kernel_lsp.consent import Consents
from kernel_lsp.errors import ConfigError
from kernel_lsp.presenter import cards, searches
from kernel_lsp.records import (
    Cost,
    MoveTally,
    Provenance,
    SearchBudget,
    SearchMode,
    SearchSummary,
    StopReason,
)


def test_flags_win_over_settings_and_settings_over_defaults() -> None:
    settings = Settings(search_candidates=10, search_tokens=5000)
    found = searching.plan(
        settings, SearchChoice.TURNS, seconds=60.0, archive=Path("/x/a.db"), fresh=True
    )
    assert found is not None
    assert (found.mode, found.archive, found.fresh) == (SearchMode.TURNS, "/x/a.db", True)
    assert found.budget == SearchBudget(candidates=10, seconds=60.0, tokens=5000)
    assert searching.plan(settings, SearchChoice.QUICK) is None


def test_a_limit_without_a_search_is_an_error_with_its_remedy() -> None:
    with pytest.raises(ConfigError, match="--search evolve"):
        searching.plan(Settings(), SearchChoice.QUICK, tokens=1)


@pytest.mark.parametrize(
    ("endpoint", "now", "granted", "expected"),
    [
        (None, True, False, None),
        ("http://localhost:8000", True, False, None),  # nothing leaves this machine
        ("https://api.example.com/v1", False, False, None),
        ("https://api.example.com/v1", True, False, "https://api.example.com"),
        ("https://api.example.com/v1", False, True, "https://api.example.com"),
    ],
)
def test_code_leaves_the_machine_only_where_somebody_allowed_it(
    tmp_path: Path, endpoint: str | None, now: bool, granted: bool, expected: str | None
) -> None:
    settings = Settings(policy="openai", endpoint=endpoint, data_dir=str(tmp_path / "data"))
    if granted:
        Consents(settings.data_dir).allow_remote(tmp_path, "https://api.example.com")
    assert searching.allowed_origin(settings, tmp_path, now=now) == expected


def test_a_summary_says_why_it_ended_and_what_a_gain_has_cost() -> None:
    summary = SearchSummary(
        mode=SearchMode.EVOLVE, stop=StopReason.STAGNATION, attempts=64, resumed=12, gains=2,
        cost=Cost(prompt_tokens=38_000, completion_tokens=3000, model_s=41.0, evaluations=30,
                  evaluation_s=320.0, gpu_s=310.0),
        moves={"restart": MoveTally(tries=12, right=8, improved=1, gain=0.6931472)},
        notes=("openai:x failed 4 times and was left out: refused",), archive="/data/a.db",
    )  # fmt: skip
    assert list(searches.search_lines(summary)) == [
        "search evolve: nothing better came any more, after 64 attempts, 12 of them by an "
        "earlier run",
        "  cost: 41k tokens (3000 of replies), 30 evaluations in 320 s, 310 s on the GPU, 41 s of "
        "replies",
        "  2 gains, each for 20k tokens (1500 of replies), 15 evaluations in 160 s, 155 s on "
        "the GPU,"
        " 20 s of replies",
        "  moves: restart 12 tried, 8 right, 1 better (x2.00)",
        "  openai:x failed 4 times and was left out: refused",
        "  archive: /data/a.db (goes on from there; --fresh begins anew)",
    ]
    assert (
        searches.end_message(summary) == "search ended: nothing better came any more (64 attempts)"
    )


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            Provenance(proposer="plan/2", skills=("fused-norm", "cuda-graph")),
            "plan/2: fused-norm, cuda-graph",
        ),
        (
            Provenance(
                proposer="openai:Qwen3-8B@0.32",
                move="refine",
                turn=2,
                parent="3f2a9c04ffff",
                skills=("fused-norm",),
                advice=("flash-attention",),
                search="1f0c9a2b7d33#12",
            ),
            "openai:Qwen3-8B@0.32, turn 2 (refine) from 3f2a9c04: fused-norm; advised by "
            "flash-attention"
            "; search 1f0c9a2b7d33#12",
        ),
        (
            Provenance(proposer="vllm:x", move="restart", turn=1, search="a#1"),
            "vllm:x, turn 1 (restart): written by hand; search a#1",
        ),
    ],
)
def test_who_proposed_it_is_one_line(made: Provenance, expected: str) -> None:
    assert cards.proposed_by(made) == expected
