"""Keys: where ours comes from, and how those in a user's text are kept from leaving with a prompt.

`redact` puts placeholders where private keys, tokens, passwords, webhooks and long random text
stand (secret_rules.py), what stands in sensitive environment variables, and what says who and where
the user is: home folders, this machine's name, addresses of mail. Its second result puts all back
into a reply before that becomes code. Not covered: a secret that looks like words."""

from __future__ import annotations

import bisect
import contextlib
import functools
import os
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_lsp import origins
from kernel_lsp.agents import explained
from kernel_lsp.agents.secret_rules import NAMED, RULES, name_starts
from kernel_lsp.agents.secret_values import Holds
from kernel_lsp.config import OPENAI_KEY, OPENAI_URL, Settings
from kernel_lsp.errors import ConfigError
from kernel_lsp.records import Message, Prompt, Role
from kernel_lsp.secret_names import HIDDEN_VARIABLE

SERVICE = "kernel-lsp"
"""Under which the system's keyring is asked; the user name is the endpoint's origin."""
MIN_VALUE_LENGTH = 8
"""A shorter value of an environment variable is too common a text to look for."""

NAMES = ("secret", "single")
"""Groups of a rule that are to be hidden; it has matched with one of them."""
SHORTEST_HOST = 4
COMMON_HOSTS = {
    "localhost",
    "torch",
    "triton",
    "model",
    "models",
    "cuda",
    "python",
    "kernel",
    "kernels",
}
COMMON_HOSTS |= {
    "test",
    "main",
    "data",
    "node",
    "train",
    "host",
    "server",
    "build",
    "runner",
    "worker",
}
"""Machines that are called like what programs are full of."""

Restore = Callable[[str], str]
Find = Callable[[int], "re.Match[str] | None"]
"""The next match that begins at a place or after it."""


class Redaction:
    """The placeholders of some texts that belong together: the same secret is the same
    placeholder."""

    def __init__(self, texts: Iterable[str], known: Iterable[str] = ()) -> None:
        self._known = sorted(
            {k for k in (*known, *_of_the_environment()) if len(k) >= MIN_VALUE_LENGTH}, key=len
        )[::-1]
        stem, everything = "REDACTED", list(texts)
        while any(
            f"__{stem}_" in text for text in everything
        ):  # or putting back would change that text
            stem += "X"
        self._stem = stem
        self._secrets: dict[str, str] = {}
        """Secret -> placeholder, in the order in which they were found."""

    def hide(self, text: str) -> str:
        """The text with a placeholder for each secret that a rule finds, or that was found in an
        earlier text."""
        for known in self._known:
            if known in text:
                text = text.replace(known, self._placeholder(known))
        starts, read = list[int](), ""
        for pattern, holds in (*RULES, *of_this_machine()):
            if pattern not in NAMED:
                text = self._without(holds, text, functools.partial(pattern.search, text))
                continue
            if text != read:
                starts, read = name_starts(text), text
            text = self._without(holds, text, functools.partial(_next, pattern, text, starts))
        return text

    def hide_unexplained(self, text: str, names: Iterable[str]) -> str:
        """``hide``, and then a placeholder for each word that neither ``names`` nor widely used
        programs have, where it may be a password."""
        text, parts, done = self.hide(text), list[str](), 0
        for start, end in explained.unexplained(text, names):
            parts += text[done:start], self._placeholder(text[start:end])
            done = end
        return "".join((*parts, text[done:]))

    def hide_again(self, text: str, names: Iterable[str]) -> str:
        """The text with placeholders wherever else stands what was hidden once, unless it is a
        word that programs have (`forward` may be a password)."""
        own = frozenset(names)
        for secret, placeholder in sorted(self._secrets.items(), key=lambda one: -len(one[0])):
            is_there = len(secret) >= MIN_VALUE_LENGTH and secret in text
            if is_there and explained.is_strange(secret, own):
                text = text.replace(secret, placeholder)
        return text

    def restore(self, text: str) -> str:
        """The text with the secrets again where their placeholders stand."""
        for secret, placeholder in reversed(
            self._secrets.items()
        ):  # a later one may hold an earlier one
            text = text.replace(placeholder, secret)
        return text

    @property
    def count(self) -> int:
        """How many secrets were hidden."""
        return len(self._secrets)

    def _without(self, holds: Holds, text: str, find: Find) -> str:
        """The text with placeholders for what is found. In what was found and is no secret the
        search goes on: `LOGIN PASSWORD '…'` holds two names."""
        parts, done, at = list[str](), 0, 0
        while match := find(at):
            named = (name for name in NAMES if name in match.re.groupindex)
            group: Any = next((name for name in named if match[name] is not None), 0)
            start, end = match.span(group)
            secret = match[group]
            if f"__{self._stem}_" in secret or not holds(secret, match):
                at = match.start() + 1
                continue
            parts += text[done:start], self._placeholder(secret)
            done, at = end, match.end()
        return "".join((*parts, text[done:]))

    def _placeholder(self, secret: str) -> str:
        return self._secrets.setdefault(secret, f"__{self._stem}_{len(self._secrets) + 1}__")


def _next(
    pattern: re.Pattern[str], text: str, starts: Sequence[int], at: int
) -> re.Match[str] | None:
    """What `pattern.search(text, at)` finds, if all of its matches begin at ``starts``."""
    places = range(bisect.bisect_left(starts, at), len(starts))
    matches = (pattern.match(text, starts[place]) for place in places)
    return next((match for match in matches if match), None)


def redact(text: str, known: Iterable[str] = ()) -> tuple[str, Restore]:
    """The text without what looks secret or stands in ``known``, and what puts it back."""
    redaction = Redaction((text,), known)
    return redaction.hide(text), redaction.restore


def redact_prompt(prompt: Prompt, known: Iterable[str] = ()) -> tuple[Prompt, Redaction]:
    """A prompt as it may leave: what our own words (the system's message) do not hold is also
    without unexplained words, and what is hidden in one message is hidden in all. Tools and sites
    hold names of skills and operations only, and stay."""
    arguments = [c.arguments for m in prompt.messages for c in m.calls]
    redaction = Redaction([m.text for m in prompt.messages] + [repr(a) for a in arguments], known)
    names = frozenset[str]().union(
        *(explained.names_of(code) for code in _programs(prompt.messages))
    )

    def hide(text: str) -> str:
        return redaction.hide_unexplained(text, names)

    def everywhere(text: str) -> str:
        return redaction.hide_again(text, names)

    # Twice: a model may have moved a password to a place that does not say what it is.
    messages = [
        _message(message, redaction.hide if message.role is Role.SYSTEM else hide)
        for message in prompt.messages
    ]
    hidden = tuple(_message(message, everywhere) for message in messages)
    return replace(prompt, messages=hidden), redaction


def _programs(messages: Iterable[Message]) -> list[str]:
    """The Python of a prompt: its fences, and code among the arguments of calls."""
    found = list[str]()
    for message in messages:
        begun, fence = -1, ""
        lines = message.text.split("\n")
        for number, line in enumerate(lines):
            if begun < 0 and line.startswith("```") and line.lstrip("`") == "python":
                begun, fence = number + 1, line.removesuffix("python")
            elif begun >= 0 and line == fence:
                found.append("\n".join(lines[begun:number]))
                begun = -1
        for call in message.calls:
            found += _texts_in(call.arguments)
    return found


def _texts_in(value: Any) -> list[str]:
    found = list[str]()

    def keep(text: str) -> str:
        found.append(text)
        return text

    each_text(value, keep)
    return found


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every string in it changed, keys excepted."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: each_text(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [each_text(item, change) for item in value]
    return value


def key_for(origin: str, settings: Settings) -> str | None:
    """The API key for an endpoint: environment first, then the system's keyring. Never raises.

    A keyring may ask its user to unlock it, so this can take long: call it in a thread.
    """
    found = key_source(origin, settings)
    return found[0] if found else None


def key_source(origin: str, settings: Settings) -> tuple[str, str] | None:
    """(key, where it was found); the second part may be shown."""
    if value := os.environ.get(settings.api_key_env, "").strip():
        return value, f"environment variable {settings.api_key_env}"
    if (value := os.environ.get(OPENAI_KEY, "").strip()) and origin == _openai_origin():
        return value, f"environment variable {OPENAI_KEY}"
    import keyring  # 50 ms, and only the host asks for keys
    import keyring.errors

    try:
        value = (keyring.get_password(SERVICE, origin) or "").strip()
    except (
        keyring.errors.KeyringError,
        OSError,
        RuntimeError,
        ValueError,
    ):  # none here, locked or broken
        return None
    return (value, "system keyring") if value else None


def _openai_origin() -> str | None:
    """Whose key `OPENAI_KEY` is: it is sent to no other server."""
    url = os.environ.get(OPENAI_URL, "").strip() or "https://api.openai.com/v1"
    with contextlib.suppress(ConfigError):
        return origins.endpoint(url).origin
    return None


def _message(message: Message, hide: Callable[[str], str]) -> Message:
    calls = tuple(replace(c, arguments=each_text(c.arguments, hide)) for c in message.calls)
    return replace(message, text=hide(message.text), calls=calls)


def _of_the_environment() -> list[str]:
    """Values of variables with sensitive names; a path is no secret."""
    pairs = os.environ.items()
    return [
        value
        for name, value in pairs
        if HIDDEN_VARIABLE.search(name) and not value.startswith(("/", "~"))
    ]


@functools.cache
def of_this_machine() -> tuple[tuple[re.Pattern[str], Holds], ...]:
    """The user's home, wherever it lies, and the name of the machine, as words of their own."""
    homes = {str(Path(name).expanduser()) for name in ("~", os.environ.get("HOME", "~"))}
    names = {platform.node(), platform.node().partition(".")[0]}
    wanted = [
        *(re.escape(home) for home in homes if len(Path(home).parts) > 1),
        *(
            re.escape(name)
            for name in names
            if len(name) >= SHORTEST_HOST and name not in COMMON_HOSTS
        ),
    ]
    if not wanted:
        return ()
    words = "|".join(sorted(wanted, key=len, reverse=True))
    return ((re.compile(rf"(?<![\w./-])(?:{words})(?![\w-])"), lambda secret, match: True),)
