"""The commands kernel-lsp.*: what a click on an action or a lens does, and what a script may call.

Each takes one object and answers at once; what takes time runs as a job. Palette commands of an editor
extension need names of their own, because clients register every command of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsprotocol import types

from kernel_lsp import interpreter, wire
from kernel_lsp.consent import Answer
from kernel_lsp.errors import KernelLspError
from kernel_lsp.records import Json
from kernel_lsp.server.app import RequestFailed, Server
from kernel_lsp.server.jobs import Jobs
from kernel_lsp.server.reads import edit_for

Handler = Callable[[Server, Jobs, Json], Any]


def register(ls: Server, jobs: Jobs) -> None:
    for name, handler in COMMANDS.items():
        ls.command(f"kernel-lsp.{name}")(_adapter(ls, jobs, handler))


def _adapter(ls: Server, jobs: Jobs, handler: Handler) -> Callable[..., Any]:
    """Clients send one object, nothing at all, or positional rubbish: only the first is an argument."""

    async def run(*arguments: Any) -> Any:
        first = arguments[0] if arguments and isinstance(arguments[0], dict) else {}
        try:
            result = handler(ls, jobs, first)
            return await result if hasattr(result, "__await__") else result
        except KernelLspError as error:
            raise RequestFailed(str(error)) from error

    return run


async def apply(ls: Server, jobs: Jobs, arguments: Json) -> Json:
    """For clients that cannot resolve code actions: check again, then ask the client to edit."""
    uri, proposal = _text(arguments, "uri"), _text(arguments, "proposal")
    edit = edit_for(ls, uri, proposal)
    if not ls.abilities.apply_edit:
        raise RequestFailed("this editor can neither resolve code actions nor apply edits of a server")
    ls.record(ls.session.chosen(uri, proposal))
    label = f"kernel-lsp: rewrite {arguments.get('qualname', '')}".strip()
    try:
        reply = await ls.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(edit=edit, label=label))
    except Exception as error:  # Eglot answers a stale edit with a JSON-RPC error
        ls.session.tracker.client_said(proposal, False, str(error))
        raise RequestFailed(f"the editor refused the edit: {error}") from error
    ls.session.tracker.client_said(proposal, reply.applied, reply.failure_reason)
    return {"applied": reply.applied}


def chosen(ls: Server, jobs: Jobs, arguments: Json) -> None:
    """Runs after the client applied the edit: a sign of choice, no proof."""
    ls.record(ls.session.chosen(_text(arguments, "uri"), _text(arguments, "proposal")))


def benchmark(ls: Server, jobs: Jobs, arguments: Json) -> Json:
    """Start measuring one target; answers before it begins."""
    uri, qualname = _text(arguments, "uri"), _text(arguments, "qualname")
    if uri not in ls.session.documents:
        raise RequestFailed(f"{uri} is not open as a Python document: open it in the editor first")
    jobs.start(uri, qualname)
    ls.shown_changed(uri)
    return {"started": qualname}


def cancel(ls: Server, jobs: Jobs, arguments: Json) -> Json:
    """Without arguments: everything that runs."""
    return {"cancelled": jobs.cancel(arguments.get("uri"), arguments.get("qualname"))}


def status(ls: Server, jobs: Jobs, arguments: Json) -> Json:
    """Which interpreter, settings and consent each folder has, what runs, and how fast we answered."""
    folders = []
    for folder in ls.roots() or [ls.root]:
        settings = ls.settings(folder)
        place = interpreter.find(folder, settings.python)
        answer = ls.consents.answer(folder, setting=settings.consent)
        folders.append(
            {
                "folder": folder,
                "interpreter": place.path,
                "interpreter_origin": place.origin,
                "consent": answer.value if answer else None,
                "settings": wire.to_json(settings),
            }
        )
    return {
        "version": ls.version,
        "client": ls.abilities.name,
        "folders": folders,
        "jobs": jobs.queue,
        "host": ls.host.pid,
        "latencies": dict(sorted(ls.latencies.items())),
    }


async def show_evidence(ls: Server, jobs: Jobs, arguments: Json) -> Json:
    """The full report: shown where the client can show a document, and returned in any case."""
    proposal = _text(arguments, "proposal")
    card = ls.session.card(str(arguments.get("uri", "")), proposal)
    path = Path(ls.settings(ls.root).data_dir) / "reports" / f"{proposal}.md"
    try:
        await ls.off_loop(_write, path, card.report)
    except OSError as error:
        ls.say(f"{path} cannot be written: {error}", types.MessageType.Warning)
        return {"title": card.title, "report": card.report}
    if ls.abilities.show_document:
        await ls.window_show_document_async(types.ShowDocumentParams(uri=path.as_uri(), take_focus=True))
    else:
        ls.say(card.report)
    return {"title": card.title, "report": card.report, "path": str(path)}


def dismiss(ls: Server, jobs: Jobs, arguments: Json) -> None:
    """Arguments: uri, qualname, code; scope proposal (this code) or skill (this folder); reason."""
    uri = _text(arguments, "uri")
    if uri not in ls.session.documents:
        raise RequestFailed(f"{uri} is not open")
    scope = "skill" if arguments.get("scope") == "skill" else "proposal"
    reason = str(arguments.get("reason", "unspecified"))
    qualname, code = _text(arguments, "qualname"), _text(arguments, "code")
    ls.record(ls.session.dismiss(uri, qualname, code, scope, reason))
    ls.shown_changed(uri)


def list_kernels(ls: Server, jobs: Jobs, arguments: Json) -> list[Json]:
    """All targets of the open documents, also those beyond the number of hints per file."""
    wanted = arguments.get("uri")
    return [
        {"uri": uri, "qualname": lens.qualname, "state": lens.title}
        for uri in ls.session.documents
        if wanted in (None, uri)
        for lens in ls.session.lenses(uri)
    ]


def trust(ls: Server, jobs: Jobs, arguments: Json) -> Json:
    """Answer the question of consent without being asked."""
    folder = str(arguments.get("folder") or ls.root)
    try:
        answer = Answer(arguments.get("answer", "allow"))
    except ValueError as error:
        raise RequestFailed(f"{error}; allowed: {', '.join(Answer)}") from error
    jobs.grant(folder, answer)
    return {"folder": folder, "answer": answer.value}


COMMANDS: dict[str, Handler] = {
    "apply": apply,
    "chosen": chosen,
    "benchmark": benchmark,
    "cancel": cancel,
    "status": status,
    "showEvidence": show_evidence,
    "dismiss": dismiss,
    "listKernels": list_kernels,
    "trust": trust,
}


def _text(arguments: Json, key: str) -> str:
    value = arguments.get(key)
    if not isinstance(value, str):
        raise RequestFailed(f"the command needs the argument {key!r}: pass one object that has it")
    return value


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
