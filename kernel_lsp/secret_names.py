"""Which variables of the environment hold secrets, by their names. Standard library only."""

from __future__ import annotations

import os
import re

HIDDEN_VARIABLE = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|WEBHOOK|DSN$|_PASS$|_PWD$|CONNECTION_STRING", re.IGNORECASE
)


def environment_without_secrets() -> dict[str, str]:
    """The user's own environment but for its secrets, for a program of theirs that hands it on
    (srun gives all of it to the node)."""
    return {name: value for name, value in os.environ.items() if not HIDDEN_VARIABLE.search(name)}
