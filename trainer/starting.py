"""How both training scripts are started from a command line: a recipe is read, shown or trained.

Whatever ends it early is said in a line. Not covered: what they do (sft.py, rl.py); starting
several processes (torchrun)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kernel_lsp.errors import ConfigError, KernelLspError
from trainer import config, planning
from trainer.config import Recipe

INTERRUPTED = 130


def main(kind: str, about: str, train: Callable[[Recipe, Any], int]) -> NoReturn:
    """Reads the command line and the recipe, trains, and exits. ``kind``: the recipe's table that
    ``train`` gets, sft or rl."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, with its memory"
    )
    options = parser.parse_args()
    try:
        recipe = config.load(options.recipe)
        if (table := getattr(recipe, kind)) is None:
            raise ConfigError(f"{options.recipe} has no [{kind}]", "add the table")
        sys.exit(planning.show(recipe, kind) if options.dry_run else train(recipe, table))
    except KernelLspError as error:
        sys.exit(f"trainer: {error}")
    except FloatingPointError as error:
        remedy = "its weights are not saved; lower optimizer.rate or optimizer.clip and start again"
        sys.exit(f"trainer: stopped at {error} ({remedy}, or look at the rows of that step)")
    except KeyboardInterrupt:
        print(
            "trainer: stopped; the same command goes on from the newest checkpoint", file=sys.stderr
        )
        sys.exit(INTERRUPTED)
