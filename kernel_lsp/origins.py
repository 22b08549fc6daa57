"""Where prompts would go: endpoints of language models, taken apart, and which of them are another
machine.

Standard library only and without looking up any name, because the server asks this before anybody
has allowed anything. Not covered: who allowed an origin (consent/)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from kernel_lsp.errors import ConfigError

PORTS = {"http": 80, "https": 443}
EXAMPLE = "write it like http://127.0.0.1:8000/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    origin: str
    """``https://api.example.com`` or ``http://127.0.0.1:8000``: lower case, without the scheme's
    own port."""
    path: str
    """``/v1``: without a slash at its end."""

    @property
    def port(self) -> int:
        """The port that is named, else the scheme's own."""
        parts = urlsplit(self.origin)
        return parts.port or PORTS[parts.scheme]

    @property
    def remote(self) -> bool:
        """Whether it may be another machine."""
        return is_remote(self.origin)


def endpoint(text: str) -> Endpoint:
    """An endpoint as users write it; ``/v1`` where they wrote no path.

    Raises ConfigError, also for a name or key inside the address: it would end up in logs.
    """
    try:
        parts = urlsplit(text.strip())
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise ConfigError(f"the endpoint cannot be read: {error}", EXAMPLE) from None
    if parts.scheme not in PORTS or not host:
        raise ConfigError("the endpoint is no http or https address", EXAMPLE)
    if _holds_more_than_a_place(parts):
        remedy = "keys come from an environment variable (api_key_env) or the system's keyring"
        raise ConfigError("the endpoint holds more than scheme, host, port and path", remedy)
    if not host.isascii() or not all(c.isalnum() or c in "-._:[]" for c in host):
        raise ConfigError(
            f"the endpoint's host {host!r} is no ASCII name", "write it in its xn-- form"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    if not path.isascii() or any(c.isspace() for c in path):
        raise ConfigError("the endpoint's path is not ASCII", EXAMPLE)
    shown = f"[{host}]" if ":" in host else host
    behind = "" if port in (None, PORTS[parts.scheme]) else f":{port}"
    return Endpoint(origin=f"{parts.scheme}://{shown}{behind}", path=path)


def _holds_more_than_a_place(parts: SplitResult) -> bool:
    is_named = parts.username is not None or parts.password is not None
    return is_named or bool(parts.query or parts.fragment)


def is_remote(origin: str) -> bool:
    """Whether the endpoint may be another machine. False only for loopback literals and
    ``localhost``: any other name may be any machine."""
    host = urlsplit(origin).hostname or ""
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
