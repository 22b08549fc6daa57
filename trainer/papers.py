"""Published settings by paper: what `rl.paper` fills in where a recipe says nothing.

Numbers are those of the papers or, where the papers are silent, of their released code; what
neither says stays as config.py has it. Sources: Kevin, arXiv 2507.11948 (and its blog for the
learning rate); Dr. Kernel, arXiv 2602.05885; daVinci-kernel, arXiv 2606.16497; Kernel-Smith,
arXiv 2603.28342, which tells neither clip, KL, rate nor batch. Lengths of replies and numbers of
steps are not here: they are those of models of 8 to 235 billion parameters. Standard library
only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_DUAL_CLIP = 1e9
"""A bound that is never reached."""
_DR_KERNEL: dict[str, dict[str, Any]] = {
    "rl": {
        "reward": "dr_kernel",
        "advantage": "trloo",
        "gamma": 1.0,
        "tasks": 16,
        "schemes": 0,
        "null": True,
        "rollouts": 16,
        "turns": 3,
        "summaries": 0,
        "aggregate": "sum_rows",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual": 3.0,
        "band": 0.001,
        "veto": 1e-4,
        "profiling": True,
        "updates": 1,
    },
    "rollouts": {"temperature": 1.0, "top_p": 1.0},
    "optimizer": {"rate": 1e-6, "clip": 1.0, "decay": 0.01},
}
PAPERS: dict[str, dict[str, dict[str, Any]]] = {
    "dr_kernel": _DR_KERNEL,
    "davinci": {
        **_DR_KERNEL,
        "rl": {
            **_DR_KERNEL["rl"],
            "reward": "davinci",
            "scaled": True,
            "schemes": 3,
            "rollouts": 4,
            "summaries": 2,
        },
    },
    "kevin": {
        "rl": {
            "reward": "kevin",
            "advantage": "kevin",
            "gamma": 0.4,
            "tasks": 8,
            "schemes": 0,
            "null": True,
            "rollouts": 16,
            "turns": 4,
            "summaries": 0,
            "aggregate": "constant_length",
            "clip_low": 0.2,
            "clip_high": 0.28,
            "dual": NO_DUAL_CLIP,
            "updates": 2,
        },
        "rollouts": {"temperature": 0.9, "top_p": 1.0},
        "optimizer": {"rate": 2e-6, "clip": 0.05},
    },
    "kernel_smith": {
        "rl": {
            "reward": "parent_relative",
            "advantage": "grpo",
            "schemes": 0,
            "null": True,
            "rollouts": 8,
            "turns": 1,
            "summaries": 0,
        },
    },
}


def with_paper(data: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's tables, filled up with those of the paper that its [rl] names, if it names one."""
    rl_settings = data.get("rl")
    name = rl_settings.get("paper") if isinstance(rl_settings, Mapping) else None
    found = dict(data)
    for table, settings in PAPERS.get(name if isinstance(name, str) else "", {}).items():
        given = data.get(table, {})
        if isinstance(given, Mapping):
            found[table] = {**settings, **given}
    return found
