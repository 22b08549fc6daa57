"""Keys: where ours comes from, and how those in a user's text are kept from leaving with a prompt.

`redact` puts placeholders where private keys, tokens, passwords and long random text stand; its second
result puts them back into a reply before that becomes code. Found are: PEM blocks, tokens with the
prefixes of well-known services, passwords in addresses, literals assigned to telling names, what stands
in telling environment variables, long base64 and hexadecimal. Not covered: a secret that looks like words.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from kernel_lsp.config import Settings
from kernel_lsp.records import Message, Prompt

SERVICE = "kernel-lsp"
"""Under which the system's keyring is asked; the user name is the endpoint's origin."""
LONG = 40
"""Characters of random text that are no accident: 240 bits of base64."""
RANDOM = 0.2
"""From which share of neighbors where a word cannot go on (aB, a1, 1a) a run counts as random. Measured: of
100,000 runs of 40 letters of base64 1 in 2,000 has less; of 2,037 names of 40 letters in torch and
transformers 20 have more; those are hidden for nothing, and come back."""
TELLING = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
LEAST = 8
"""A shorter value of an environment variable is too common a text to look for."""

Restore = Callable[[str], str]

_END = r"(?![A-Za-z0-9])"
_PEM = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,40}-----"
    # No second beginning inside, or each of many beginnings is read on for 20,000 characters (7 s in 400 kB).
    r"(?:[A-Za-z0-9+/=\s\"'\\,:()]|-(?!----BEGIN )){0,20000}?"
    r"-----END [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,40}-----"
)
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"(?:sk|rk|pk)[-_](?=[\w-]{0,200}\d)[\w-]{16,}"  # OpenAI, Anthropic, Stripe
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl[a-z]{2,4}-(?=[\w-]{0,200}\d)[\w-]{16,}"
    r"|hf_(?=[A-Za-z]{0,200}[A-Z])[A-Za-z]{30,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{30,}|nvapi-[\w-]{20,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w.-]{20,}"
    r"|(?<!-)eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|(?:npm|pypi|dckr_pat|shp[a-z]{2}|dop_v1|tskey)[-_](?=[\w-]{0,200}\d)[\w-]{20,}"
    r")" + _END
)
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/:@'\"]{0,64}:(?P<secret>[^\s/@'\"{}$%]{1,256})@")
_BEARER = re.compile(r"(?i:bearer)\s{1,4}(?P<secret>(?=[\w.~+/-]{0,200}\d)[\w.~+/-]{16,2000}={0,2})")
_NAME = (
    r"(?i:passw(?:or)?d|passwd|passphrase|secret|api_?key|access_?key|private_?key|secret_?key|"
    r"(?:auth|access|api|bearer|refresh)_?token|credential)s?"
)
_EQUALS = r"[\"']?\]?\s{0,8}(?::\s{0,8}str\s{0,8})?[:=]=?\s{0,8}[rbuRBU]{0,2}"
_ASSIGNED = re.compile(_NAME + _EQUALS + r"(?P<q>[\"'])(?P<secret>[^\"'\\\n]{6,512})(?P=q)")
_TOKEN = re.compile(
    r"(?i:token|auth|key)" + _EQUALS + r"(?P<q>[\"'])"
    r"(?P<secret>(?=[^\"'\n]{0,500}\d)(?=[^\"'\n]{0,500}[A-Za-z])[\w./+=~-]{16,512})(?P=q)"
)
_HEX = re.compile(r"(?<![A-Za-z0-9_])[0-9a-fA-F]{32,}" + _END)
_RUN = re.compile(rf"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{{{LONG},}}={{0,2}}")


class Redaction:
    """The placeholders of some texts that belong together: the same secret is the same placeholder."""

    def __init__(self, texts: Iterable[str], known: Iterable[str] = ()) -> None:
        self._known = sorted({k for k in (*known, *_of_the_environment()) if len(k) >= LEAST}, key=len)[::-1]
        stem, everything = "REDACTED", list(texts)
        while any(f"__{stem}_" in text for text in everything):  # or putting back would change that text
            stem += "X"
        self._stem = stem
        self._secrets: dict[str, str] = {}
        """Secret -> placeholder, in the order in which they were found."""

    def hide(self, text: str) -> str:
        for known in self._known:
            if known in text:
                text = text.replace(known, self._placeholder(known))
        for pattern, holds in _PATTERNS:
            text = pattern.sub(functools.partial(self._hidden, holds), text)
        return text

    def restore(self, text: str) -> str:
        for secret, placeholder in reversed(self._secrets.items()):  # a later one may hold an earlier one
            text = text.replace(placeholder, secret)
        return text

    @property
    def count(self) -> int:
        return len(self._secrets)

    def _hidden(self, holds: Callable[[str], bool], match: re.Match[str]) -> str:
        group: Any = "secret" if "secret" in match.re.groupindex else 0
        secret = match[group]
        if f"__{self._stem}_" in secret or not holds(secret):
            return match[0]
        start, end = match.span(group)
        return (
            match.string[match.start() : start] + self._placeholder(secret) + match.string[end : match.end()]
        )

    def _placeholder(self, secret: str) -> str:
        return self._secrets.setdefault(secret, f"__{self._stem}_{len(self._secrets) + 1}__")


def redact(text: str, known: Iterable[str] = ()) -> tuple[str, Restore]:
    """The text without what looks secret or stands in ``known``, and what puts it back."""
    redaction = Redaction((text,), known)
    return redaction.hide(text), redaction.restore


def redacted(prompt: Prompt, known: Iterable[str] = ()) -> tuple[Prompt, Redaction]:
    """A prompt as it may leave. Tools and sites hold names of skills and operations only, and stay."""
    arguments = [c.arguments for m in prompt.messages for c in m.calls]
    redaction = Redaction([m.text for m in prompt.messages] + [repr(a) for a in arguments], known)
    messages = tuple(_message(message, redaction) for message in prompt.messages)
    return replace(prompt, messages=messages), redaction


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
    import keyring  # 50 ms, and only the host asks for keys
    import keyring.errors

    try:
        value = (keyring.get_password(SERVICE, origin) or "").strip()
    except (keyring.errors.KeyringError, OSError, RuntimeError, ValueError):  # none here, locked or broken
        return None
    return (value, "system keyring") if value else None


def _message(message: Message, redaction: Redaction) -> Message:
    calls = tuple(replace(c, arguments=each_text(c.arguments, redaction.hide)) for c in message.calls)
    return replace(message, text=redaction.hide(message.text), calls=calls)


def _of_the_environment() -> list[str]:
    """Values of variables with telling names; a path is no secret."""
    pairs = os.environ.items()
    return [value for name, value in pairs if TELLING.search(name) and not value.startswith(("/", "~"))]


def _always(secret: str) -> bool:
    return True


def _random_hex(run: str) -> bool:
    return any(c.isdigit() for c in run) and any(c.isalpha() for c in run) and len(set(run)) >= 8


def _random_word(run: str) -> bool:
    """Behind a telling name less will do; but `key = "layers.0.weight"` is what models are full of."""
    return (_breaks(run) and len(set(run)) >= 10) or bool(_HEX.fullmatch(run))


def _random(run: str) -> bool:
    return _breaks(run) and len(set(run)) >= 16


def _breaks(run: str) -> bool:
    """Letters of base64 change their kind far more often than words do, CamelCase included."""
    kinds = "".join("a" if c.islower() else "A" if c.isupper() else "1" if c.isdigit() else " " for c in run)
    pairs = [x + y for x, y in pairwise(kinds) if " " not in (x, y)]
    breaks = sum(pair in ("aA", "a1", "A1", "1a", "1A") for pair in pairs)
    return breaks >= RANDOM * len(pairs)


_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = (
    (_PEM, _always),
    (_PREFIXED, _always),
    (_IN_ADDRESS, _always),
    (_BEARER, _always),
    (_ASSIGNED, _always),
    (_TOKEN, _random_word),
    (_HEX, _random_hex),
    (_RUN, _random),
)
