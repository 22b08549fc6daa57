"""What the user is asked before anything happens: may code of a folder run, may it leave this
machine.

Each question is asked once per session and folder (and origin); no answer is no. Not covered: what
an answer permits (jobs.py), and where answers are kept (consent/)."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from lsprotocol import types

from kernel_lsp import signatures
from kernel_lsp.config import Settings
from kernel_lsp.confinement.held import Held, try_layers
from kernel_lsp.confinement.layers import GUARANTEES
from kernel_lsp.consent import ConsentAnswer, subjects
from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.server.app import KernelServer

log = logging.getLogger("kernel_lsp")
ANSWER_TIMEOUT_S = 600.0
MAX_SKILLS = 50
ALLOW, ON_REQUEST, NEVER = "Allow for this folder", "Only when I ask", "Never"
_ANSWERS = {
    ALLOW: ConsentAnswer.ALLOW,
    ON_REQUEST: ConsentAnswer.ON_REQUEST,
    NEVER: ConsentAnswer.NEVER,
}
SHOW, NO = "Show first", "No"
NOT_SENT = "Nothing is sent to a language model; `kernel-lsp optimize --allow-remote` sends it."
DRIVER = "calls of a GPU's driver, and attacks on the kernel itself"


def question(folder: str, held: Held) -> str:
    """What is asked for, which layers will hold here, what they leave open, and what an answer
    covers."""
    opened = "; ".join((*held.open, *([held.problem] if held.problem else []), DRIVER))
    covered = f"An answer covers {subjects.words(folder)}."
    return (
        f"kernel-lsp wants to run code from {folder} to measure how fast it is. It runs "
        f"confined, and "
        f"nothing leaves this machine. What holds here: {held.words}. What stays open: {opened}. "
        f"{covered}"
    )


def trust(folder: str) -> str:
    """How to allow what cannot be asked for."""
    return (
        f"To let it measure code of {folder}, which then runs confined: "
        f"`kernel-lsp trust {shlex.quote(folder)}` in a terminal."
    )


class Questions:
    """The questions of one server."""

    def __init__(self, ls: KernelServer) -> None:
        self._ls = ls
        self._asking: dict[str, asyncio.Task[ConsentAnswer | None]] = {}
        self._trying: asyncio.Task[Held] | None = None
        self._asking_remote: dict[tuple[str, str], asyncio.Task[bool | None]] = {}

    def forget(self, folder: str) -> None:
        """An answer came in another way."""
        self._asking.pop(folder, None)
        for key in [key for key in self._asking_remote if key[0] == folder]:
            del self._asking_remote[key]

    async def consent(self, folder: str, path: str | None = None) -> ConsentAnswer | None:
        """May its code run, of this file: the stored answer, or the user's; None when there is
        none.

        Asked again when other things lie there, or less holds here than the answer rests on.
        """
        ls = self._ls
        if not ls.trusted:
            return ConsentAnswer.NEVER
        setting = ls.settings(folder).consent
        answer = ls.consents.answer(folder, setting=setting, path=path)
        if answer is ConsentAnswer.NEVER or (answer is not None and setting == "always"):
            return answer
        if answer is not None:
            held = await self._held()
            if held.problem or ls.consents.required(folder) <= held.closed:
                return answer  # where it could not be tried the entry refuses what lacks a layer
        asked = self._asking.get(folder)
        if (
            asked is not None
            and asked.done()
            and not asked.cancelled()
            and asked.result() is not None
        ):
            del self._asking[folder]  # answered, about something else than what is there now
        if folder not in self._asking:
            if not ls.consents.may_ask(folder, path=path, again=answer is not None):
                return None
            self._asking[folder] = ls.spawn(self._ask(folder))
        return await asyncio.shield(self._asking[folder])

    async def remote(self, folder: str, origin: str, show: Callable[[], Awaitable[object]]) -> bool:
        """May prompts with its code go to this machine; ``show`` opens what would be sent."""
        ls, key = self._ls, (folder, origin)
        if not ls.trusted:
            return False
        answer = ls.consents.remote_answer(folder, origin)
        if answer is None:
            if key not in self._asking_remote:
                self._asking_remote[key] = ls.spawn(self._ask_remote(folder, origin, show))
            answer = await asyncio.shield(self._asking_remote[key])
        return answer is True

    def answered_remote(self, folder: str, origin: str, *, allowed: bool) -> None:
        """Keeps whether code of the folder may go to that endpoint; an answer that cannot be kept
        is said."""
        self._asking_remote.pop((folder, origin), None)
        consents = self._ls.consents
        try:
            (consents.allow_remote if allowed else consents.forbid_remote)(folder, origin)
        except ConfigError as error:
            self._ls.say(str(error), types.MessageType.Warning)

    async def _ask(self, folder: str) -> ConsentAnswer | None:
        ls = self._ls
        ls.consents.count_attempt(folder)
        ls.set_status("warning", f"{Path(folder).name}: waiting for consent to measure")
        try:
            held = await self._held()
            text = question(folder, held) + await ls.off_loop(
                _about_unsigned, folder, ls.settings(folder)
            )
            answer = _ANSWERS.get(await self._choice(text, list(_ANSWERS), trust(folder)) or "")
        finally:
            ls.set_status("ok", None)
        if answer is not None:
            self.record(folder, answer, held)
        return answer

    def record(self, folder: str, answer: ConsentAnswer, held: Held) -> None:
        """Keeps the answer with what holds here: the question has named it."""
        accepted = frozenset(GUARANTEES) - held.promise
        try:
            self._ls.consents.record(folder, answer, promise=held.promise, accepted=accepted)
        except ConfigError as error:
            self._ls.say(str(error), types.MessageType.Warning)

    async def _held(self) -> Held:
        """Tried once: a machine's layers do not change while a server runs."""
        if self._trying is None:
            self._trying = self._ls.spawn(try_layers())
        return await asyncio.shield(self._trying)

    async def _ask_remote(
        self, folder: str, origin: str, show: Callable[[], Awaitable[object]]
    ) -> bool | None:
        text = (
            f"kernel-lsp would send source code of {folder} to the language model at {origin}, "
            f"with keys and "
            "tokens left out. Without it everything else goes on as before."
        )
        self._ls.set_status("warning", f"{Path(folder).name}: waiting for an answer about {origin}")
        try:
            chosen = await self._choice(text, [SHOW, ALLOW, NO], NOT_SENT)
            if chosen == SHOW:
                await self._describe(show)
                chosen = await self._choice(text, [ALLOW, NO], NOT_SENT)
        finally:
            self._ls.set_status("ok", None)
        if chosen in (ALLOW, NO):
            self.answered_remote(folder, origin, allowed=chosen == ALLOW)
        return {ALLOW: True, NO: False}.get(chosen or "")

    async def _describe(self, show: Callable[[], Awaitable[object]]) -> None:
        """What cannot be shown is said; the question stays."""
        try:
            await show()
        except KernelLspError as error:
            self._ls.say(f"the prompt cannot be shown: {error}", types.MessageType.Warning)

    async def _choice(self, text: str, titles: Sequence[str], instead: str) -> str | None:
        """Which title was chosen; ``instead`` is said to somebody whose editor shows no questions
        (Kate 22.12)."""
        actions = [types.MessageActionItem(title=title) for title in titles]
        question = types.ShowMessageRequestParams(
            type=types.MessageType.Info, message=text, actions=actions
        )
        ask = self._ls.window_show_message_request_async(question)
        try:
            reply = await asyncio.wait_for(ask, ANSWER_TIMEOUT_S)
        except TimeoutError:
            return None
        except Exception as error:  # whatever a client answers with, it is no permission
            log.warning("a question was not answered: %s", error)
            message = f"kernel-lsp has a question that this editor does not show. {instead}"
            self._ls.window_show_message(
                types.ShowMessageParams(type=types.MessageType.Warning, message=message)
            )
            return None
        return getattr(reply, "title", None)


def _about_unsigned(folder: str, settings: Settings) -> str:
    """Skills that would run with it and that nobody has signed, or not whoever is trusted."""
    keyring = signatures.Keyring(settings.data_dir)
    places = [
        Path(folder) / "skills",
        *(Path(folder) / Path(one).expanduser() for one in settings.skill_folders),
    ]
    found = []
    for place in places:
        try:
            skills = sorted(path.parent for path in place.glob("*/SKILL.md"))[:MAX_SKILLS]
            found += [skill for skill in skills if not keyring.vouches(skill)]
        except OSError:
            continue
    if not found:
        return ""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f" So do skills that nobody you trust has signed: "
        f"{', '.join(s.name for s in found[:3])}{more}."
    )
