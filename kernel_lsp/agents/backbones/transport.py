"""HTTP to one endpoint: time limits, repeated tries, a rate limit, proxies, streams of events,
cancelling.

It follows no redirect, so that a prompt goes to the origin that was allowed and to no other, and
logs origin, sizes, times and status, never a header, a key or a text. A proxy from the environment
is used for other machines only. Not covered: what is asked and answered (chat.py).

Why not the `openai` package (3.57.0, tried in the place of `answers` on 2026-11-28, itself upon
httpx2): 55 of the 63 tests of this backbone pass. A server that answers a request for a stream in
one piece is read as empty, an event or an answer may be of any length, and a chunk that is no
object ends in an AttributeError. Importing it costs the host 0.4 s of CPU time and 26 MB (53
instead of 27), and it brings 30 MB of files; questions beside the API (/tokenize, /version) would
stay here."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import logging
import math
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx2

from kernel_lsp.agents import secrets
from kernel_lsp.errors import BackboneError
from kernel_lsp.origins import Endpoint
from kernel_lsp.records import Json

log = logging.getLogger(__name__)
T = TypeVar("T")

CONNECT_S = 10.0
QUESTION_S = 10.0
"""For the small questions beside prompts: models, version, counting."""
TRIES = 5
BACKOFF_S = 0.5
"""Before the second try; doubled for each further one, times 0.75 to 1.25."""
MINUTE_S = 60.0
EVENT_BYTES = 256 * 1024
"""One event; the longest known holds the token ids of a prompt: 24,576 times 7 letters."""
WIRE_BYTES = 16 * 1024 * 1024
"""Of one answer as it is sent. Log-probabilities take some 300 bytes a token."""
ERROR_BYTES = 64 * 1024
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Status codes that may be gone at the next try."""


class HttpFailure(Exception):
    """A status that is no success, or a connection that broke (status None)."""

    def __init__(
        self,
        status: int | None,
        message: str,
        *,
        param: str | None = None,
        after_s: float | None = None,
    ) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status, self.message, self.param, self.after_s = status, message, param, after_s

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: no answer at all, or a status that says
        so."""
        return self.status is None or self.status in PASSING


class Transport:
    """A client of one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        key: str | None,
        in_flight: int,
        per_minute: int | None = None,
        gone: Callable[[], bool] = lambda: False,
    ) -> None:
        """``gone`` knows of a server whose end is for good: nothing is tried again then."""
        self.endpoint = endpoint
        self._known = (key,) if key else ()
        self._client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(
                None, connect=CONNECT_S
            ),  # whole replies have a limit of their own
            limits=httpx2.Limits(max_connections=in_flight + 2),
            follow_redirects=False,
            trust_env=endpoint.remote,
        )
        self._rate = Rate(per_minute)
        self._gone = gone

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def ask(self, path: str, body: Json | None = None) -> Any:
        """A small question, beside the API when the path begins with a slash. Raises
        HttpFailure."""
        try:
            async with asyncio.timeout(QUESTION_S), self._open(path, body) as response:
                return json.loads(await _body(response, WIRE_BYTES))
        except TimeoutError:
            raise HttpFailure(None, f"no answer within {QUESTION_S:.0f} s") from None
        except (ValueError, RecursionError):
            raise HttpFailure(None, "the answer is no JSON") from None

    async def answers(self, path: str, body: Json) -> AsyncGenerator[Any, None]:
        """The JSON values of one answer: its events, or its only body. Raises HttpFailure."""
        begun = time.monotonic()
        async with self._open(path, body) as response:
            try:
                async for text in _parts(response):
                    yield json.loads(text)
            except (ValueError, RecursionError):
                raise HttpFailure(None, "the answer is no JSON") from None
            finally:
                received, seconds = response.num_bytes_downloaded, time.monotonic() - begun
                log.debug("%s: %d bytes in %.2f s", self.endpoint.origin, received, seconds)

    async def persist(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        unless: frozenset[int] = frozenset(),
        deadline: float = math.inf,
    ) -> T:
        """``attempt`` again while it fails in passing: at most TRIES, within the rate limit.

        ``unless``: status codes that do not count as passing. Raises the last HttpFailure, at once
        where the next try would begin after the ``deadline`` (time.monotonic)."""
        for number in range(TRIES):
            await self._rate.turn()
            try:
                return await attempt()
            except HttpFailure as failure:
                final = number == TRIES - 1 or failure.status in unless or self._gone()
                if final or not failure.passing:
                    raise
                # Else samples march in step.
                pause = BACKOFF_S * 2**number * random.uniform(0.75, 1.25)
                pause = max(pause, failure.after_s or 0.0)
                if time.monotonic() + pause > deadline:
                    raise
                log.info(
                    "%s: %s; again in %.1f s", self.endpoint.origin, failure.status or "cut", pause
                )
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _open(self, path: str, body: Json | None) -> AsyncIterator[httpx2.Response]:
        url = self.endpoint.origin + (
            path if path.startswith("/") else f"{self.endpoint.path}/{path}"
        )
        request = self._client.build_request("GET" if body is None else "POST", url, json=body)
        begun = time.monotonic()
        try:
            response = await self._client.send(request, stream=True)
            try:
                where = f"{self.endpoint.origin} /{path.strip('/')}"
                log.info(
                    "%s: %d after %.2f s", where, response.status_code, time.monotonic() - begun
                )
                if response.status_code != 200:
                    raise await self._refusal(response)
                yield response
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            raise HttpFailure(None, self.clean(f"{type(error).__name__}: {error}")) from None
        except httpx2.InvalidURL as error:
            cause = f"{self.endpoint.origin} cannot be asked: {error}"
            raise BackboneError(cause, "correct the endpoint") from None

    async def _refusal(self, response: httpx2.Response) -> HttpFailure:
        if response.is_redirect:
            to = self.clean(str(response.headers.get("location", "nowhere")))
            return HttpFailure(response.status_code, f"it redirects to {to}, which nobody allowed")
        message, param = _error_message(await _body(response, ERROR_BYTES))
        after = _seconds(response.headers.get("retry-after"))
        return HttpFailure(response.status_code, self.clean(message), param=param, after_s=after)

    def clean(self, text: str) -> str:
        """A foreign text for logs and errors: one line, short, without keys."""
        return secrets.redact(" ".join(text[:2000].split()), self._known)[0][:300]


class Rate:
    """At most so many turns a minute, first come, first served."""

    def __init__(self, per_minute: int | None) -> None:
        self._most = per_minute
        self._turns: deque[float] = deque()

    async def turn(self) -> None:
        """Waits until one more request fits into this minute; returns at once where there is no
        limit."""
        if self._most is None:
            return
        now = time.monotonic()
        while self._turns and self._turns[0] <= now - MINUTE_S:
            self._turns.popleft()
        at = now if len(self._turns) < self._most else self._turns[-self._most] + MINUTE_S
        # Taken before the wait, so that nobody passes by; one that is cancelled is lost.
        self._turns.append(at)
        await asyncio.sleep(at - now)


async def _parts(response: httpx2.Response) -> AsyncIterator[str]:
    """Texts of JSON: one of each event until ``[DONE]``, or one whole body."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        yield (await _body(response, WIRE_BYTES)).decode(errors="replace")
        return
    async for event in httpx2.EventSource(response, max_event_size=EVENT_BYTES):
        if event.data.strip() == "[DONE]":
            return
        if event.data.strip():
            yield event.data
        if response.num_bytes_downloaded > WIRE_BYTES:
            raise HttpFailure(None, f"the answer is longer than {WIRE_BYTES // 2**20} MB")


async def _body(response: httpx2.Response, limit: int) -> bytes:
    """Raises HttpFailure for a longer one, except that of an error, which is cut."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            if response.status_code == 200:
                raise HttpFailure(None, f"the answer is longer than {limit // 2**20} MB")
            break
    return bytes(body[:limit])


def _error_message(body: bytes) -> tuple[str, str | None]:
    """(message, name of the field that it is about) of an error's body: an object, a string or
    anything."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace") or "without a word", None
    error = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(error, dict):
        return str(error), None
    message = error.get("message") or error.get("detail") or json.dumps(error)
    param = error.get("param")
    return str(message), param if isinstance(param, str) else None


def _seconds(header: str | None) -> float | None:
    """Retry-After from now on: seconds, or a date (RFC 9110); None for anything else."""
    if header is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(ValueError, TypeError):  # the latter for a date without a zone
        when = email.utils.parsedate_to_datetime(header)
        return max(0.0, (when - datetime.now(UTC)).total_seconds())
    return None
