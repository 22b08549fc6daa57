"""What the tests of this folder share: a server that answers, and how to talk to it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.agents import backbones
from kernel_lsp.config import Settings
from kernel_lsp.records import Backbone, ModelInfo, Progress

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-vllm" / "bin"
AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that answers."""

    settings: Settings
    info: ModelInfo
    said: tuple[str, ...]
    """What its start has reported."""


def made_for(settings: Settings) -> Backbone:
    return backbones.make(
        settings, python=sys.executable, allowed_origin=None, data_dir=str(settings.data_dir)
    )


def silent(progress: Progress) -> None:
    pass
