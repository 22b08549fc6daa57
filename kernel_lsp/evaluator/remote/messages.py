"""Messages as lines of text: what passes through a login shell, ssh and srun unchanged.

Each line carries a token that this connection alone knows, so that a greeting of the shell, or
what else is printed there, is no message. Standard library only: both ends import it."""

from __future__ import annotations

from typing import Any

from kernel_lsp import foreign, wire

MAX_LINE_BYTES = 64 * 2**20
BEAT_S = 5.0
"""Between signs of life, in both directions."""
SILENCE_S = 30.0
"""Without any sign, the other end is gone."""


def encode(token: str, message: dict[str, Any]) -> bytes:
    """The message as one line that begins with the token of the connection."""
    return f"{token} {wire.dumps(message)}\n".encode()


def decode(token: str, line: bytes) -> dict[str, Any] | None:
    """The message of one line; None: it is no message of this connection."""
    _, mark, rest = line.partition(f"{token} ".encode())
    try:
        message = foreign.json_value(rest) if mark else None
    except ValueError:  # cut off by the end of the other side, or none of ours
        return None
    return message if isinstance(message, dict) else None
