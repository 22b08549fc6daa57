"""Options of every command that may search beyond the quick search, and what they mean together."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from kernel_lsp.config import Settings
from kernel_lsp.consent import Consents, remote_origin
from kernel_lsp.errors import ConfigError
from kernel_lsp.records import SearchBudget, SearchMode, SearchPlan


class SearchChoice(StrEnum):
    QUICK = "quick"
    BEST = "best"
    TURNS = "turns"
    EVOLVE = "evolve"


SEARCH = typer.Option(
    SearchChoice.QUICK,
    help="quick: seconds. evolve: goes on with everything there is. best, turns: a language "
    "model alone.",
)
POLICY = typer.Option(
    None, help="Who proposes: plan (no language model, the default), openai, vllm or transformers."
)
MODEL = typer.Option(None, help="The model's name at the endpoint, or its folder.")
ENDPOINT = typer.Option(None, help="Where policy openai asks, e.g. http://127.0.0.1:8000/v1.")
CANDIDATES = typer.Option(None, min=1, help="A search ends after so many judged candidates (64).")
SECONDS = typer.Option(None, min=1.0, help="... after so long (1800).")
TOKENS = typer.Option(None, min=1, help="... after so many tokens.")
GPU_SECONDS = typer.Option(None, min=1.0, help="... after so much GPU time.")
ALLOW_REMOTE = typer.Option(
    False, "--allow-remote", help="Prompts with source code may leave this machine, for this run."
)


def plan(
    settings: Settings,
    search: SearchChoice,
    *,
    candidates: int | None = None,
    seconds: float | None = None,
    tokens: int | None = None,
    gpu_seconds: float | None = None,
    archive: Path | None = None,
    fresh: bool = False,
) -> SearchPlan | None:
    """What flags say, and settings where they are silent. Raises ConfigError."""
    if search is SearchChoice.QUICK:
        if any((candidates, seconds, tokens, gpu_seconds, archive, fresh)):
            remedy = "add --search evolve; the quick search has --budget"
            raise ConfigError("limits and archives belong to a deeper search", remedy)
        return None
    budget = SearchBudget(
        candidates=candidates or settings.search_candidates,
        seconds=seconds or settings.search_seconds,
        tokens=tokens or settings.search_tokens,
        gpu_seconds=gpu_seconds or settings.search_gpu_seconds,
    )
    path = str(archive.absolute()) if archive else None
    return SearchPlan(
        mode=SearchMode(search),
        budget=budget,
        archive=path,
        fresh=fresh,
        turns=settings.search_turns,
    )


def allowed_origin(settings: Settings, folder: Path, *, now: bool) -> str | None:
    """The remote endpoint that prompts may go to: allowed for the folder, or ``now`` by a flag.

    Raises ConfigError for an endpoint that cannot be read.
    """
    origin = remote_origin(settings)
    if origin is None or now or Consents(settings.data_dir).allows_remote(folder, origin):
        return origin
    return None
