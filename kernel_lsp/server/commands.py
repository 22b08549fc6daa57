"""The commands kernel-lsp.*: what a click on an action or a lens does, and what a script may call.

Each takes one object and answers at once; what takes time runs as a job. Palette commands of an
editor extension need names of their own, because clients register every command of the server."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsprotocol import types

from kernel_lsp import config, interpreter, origins, wire
from kernel_lsp.config import Settings
from kernel_lsp.consent import ConsentAnswer, remote_origin
from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.presenter.status import status_lines, status_page
from kernel_lsp.records import Json, SearchBudget, SearchMode, SearchPlan, WeekSummary
from kernel_lsp.server import entries, programs, prompts
from kernel_lsp.server.app import KernelServer
from kernel_lsp.server.jobs import ServerJobs
from kernel_lsp.server.protocol import BadArguments, RequestFailed
from kernel_lsp.server.reads import edit_for

Handler = Callable[[KernelServer, ServerJobs, Json], Any]


def register(ls: KernelServer, jobs: ServerJobs) -> None:
    """Adds all commands to the server."""
    for name, handler in COMMANDS.items():
        ls.command(f"kernel-lsp.{name}")(_adapter(ls, jobs, handler))


def _adapter(ls: KernelServer, jobs: ServerJobs, handler: Handler) -> Callable[..., Any]:
    """Clients send one object, nothing at all, or positional rubbish: only the first is an
    argument."""

    async def run(*arguments: Any) -> Any:
        first = arguments[0] if arguments and isinstance(arguments[0], dict) else {}
        try:
            result = handler(ls, jobs, first)
            return await result if hasattr(result, "__await__") else result
        except (KernelLspError, OSError) as error:
            # A path of the client's may be none of this machine.
            raise RequestFailed(str(error)) from error

    return run


async def apply(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Applies a rewrite, for clients that cannot resolve code actions: checks again, then asks for
    the edit.

    Arguments: `uri`, `proposal`, as the code action holds them.
    """
    uri, proposal = _text(arguments, "uri"), _text(arguments, "proposal")
    edit = edit_for(ls, uri, proposal)
    if not ls.abilities.apply_edit:
        raise RequestFailed(
            "this editor can neither resolve code actions nor apply edits of a server"
        )
    ls.record(ls.session.chosen(uri, proposal))
    label = f"kernel-lsp: rewrite {arguments.get('qualname', '')}".strip()
    try:
        reply = await ls.workspace_apply_edit_async(
            types.ApplyWorkspaceEditParams(edit=edit, label=label)
        )
    except Exception as error:  # Eglot answers a stale edit with a JSON-RPC error
        ls.session.tracker.client_said(proposal, False, str(error))
        raise RequestFailed(f"the editor refused the edit: {error}") from error
    ls.session.tracker.client_said(proposal, reply.applied, reply.failure_reason)
    return {"applied": reply.applied}


def record_choice(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> None:
    """Notes that a rewrite was chosen; runs after the client applied the edit, a sign and no proof.

    Arguments: `uri`, `proposal`, as the code action holds them.
    """
    ls.record(ls.session.chosen(_text(arguments, "uri"), _text(arguments, "proposal")))


def optimize(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Measures one target: seconds to a minute. The answer comes before it begins.

    Arguments: `uri`, `qualname`.
    """
    uri, qualname = _target(ls, arguments)
    jobs.start(uri, qualname)
    ls.republish(uri)
    return {"started": qualname}


def search_deeper(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Searches on in the background, or goes on where a search ended.

    Arguments: `uri`, `qualname`; optional `mode` (`evolve`, `turns`, `best`), the limits
    `candidates`, `seconds`, `tokens`, `gpu_seconds` (unset: the settings of these names), and
    `fresh` (true: anew)."""
    uri, qualname = _target(ls, arguments)
    settings = ls.settings(ls.session.documents[uri].folder)
    budget = SearchBudget(
        candidates=_count(arguments, "candidates") or settings.search_candidates,
        seconds=_limit(arguments, "seconds") or settings.search_seconds,
        tokens=_count(arguments, "tokens") or settings.search_tokens,
        gpu_seconds=_limit(arguments, "gpu_seconds") or settings.search_gpu_seconds,
    )
    try:
        mode = SearchMode(arguments.get("mode", SearchMode.EVOLVE))
    except ValueError as error:
        raise BadArguments(f"{error}; allowed: {', '.join(SearchMode)}") from error
    fresh, turns = arguments.get("fresh") is True, settings.search_turns
    jobs.search(uri, qualname, SearchPlan(mode=mode, budget=budget, fresh=fresh, turns=turns))
    ls.republish(uri)
    return {"started": qualname, "mode": mode.value, "budget": wire.to_json(budget)}


def cancel(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Stops the jobs that match; without arguments everything that runs.

    Arguments, all optional: `uri`, `qualname`, `kind` (`quick` or `search`).
    """
    found = jobs.cancel(arguments.get("uri"), arguments.get("qualname"), arguments.get("kind"))
    return {"cancelled": found}


async def show_prompt(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Opens what a language model would be sent about a target, redacted; sends nothing.

    Arguments: `uri`, `qualname`.
    """
    uri, qualname = _target(ls, arguments)
    # Reading it runs its code.
    await jobs.require_consent(ls.session.documents[uri].folder, asked=True)
    return await prompts.show(ls, uri, qualname)


def allow_remote(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Answers whether prompts with code of a folder may go to a model's server.

    Arguments: `folder`, `origin`, `answer` (true or false).
    """
    folder, answer = _folder(ls, arguments), arguments.get("answer", True)
    if not isinstance(answer, bool):
        raise BadArguments(f"answer {answer!r} is neither true nor false")
    origin = origins.endpoint(_text(arguments, "origin")).origin
    jobs.questions.answered_remote(folder, origin, allowed=answer)
    return {"folder": folder, "origin": origin, "allowed": answer}


def status(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Returns which interpreter, settings and consent each folder has, what runs, and how fast we
    answered.

    Takes no arguments. `problems` are settings that could not be used; `device` is what measured
    last, null before that."""
    return {
        "version": ls.version,
        "client": ls.abilities.name,
        "folders": [_folder_state(ls, folder) for folder in ls.roots() or [ls.root]],
        "jobs": jobs.queue,
        "device": ls.session.device,
        "host": ls.host.pid,
        "latencies": dict(sorted(ls.latencies.items())),
    }


def _folder_state(ls: KernelServer, folder: str) -> Json:
    settings = ls.settings(folder)
    place = interpreter.find(folder, settings.python)
    answer = ls.consents.answer(folder, setting=settings.consent)
    remote = _remote(settings)
    return {
        "folder": folder,
        "interpreter": place.path,
        "interpreter_origin": place.origin,
        "consent": answer.value if answer else None,
        "remote": remote,
        "remote_allowed": remote and ls.consents.remote_answer(folder, remote),
        "settings": wire.to_json(settings),
        "problems": [str(p) for p in config.load(folder, editor=ls.editor_settings)[1]],
    }


async def show_status(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Opens a page of five lines where the client can show a document, and returns them in any
    case: what runs, what measures, what became of rewrites this week, what was gained, what is
    wrong.

    Arguments, both optional: `folder`; `page` (false: only returns the lines)."""
    folder = _folder(ls, arguments)
    if folder not in (ls.roots() or [ls.root]):
        raise BadArguments(f"{folder} is no folder of this workspace")
    about = _folder_state(ls, folder)
    problems = list(about["problems"])
    week: WeekSummary | None = None
    try:
        week = wire.from_json(WeekSummary, await ls.host.ask("week", folder=folder))
    except KernelLspError as error:
        problems.append(str(error))
    lines = status_lines(
        jobs=jobs.queue,
        device=ls.session.device or about["settings"]["device"],
        interpreter=about["interpreter"],
        consent=about["consent"],
        week=week,
        problems=problems,
    )
    if arguments.get("page") is False:
        return {"lines": list(lines)}
    path = Path(ls.settings(folder).data_dir) / "reports" / "status.md"
    await ls.off_loop(prompts.write, path, status_page(folder, ls.version, lines))
    if ls.abilities.show_document:
        await ls.window_show_document_async(
            types.ShowDocumentParams(uri=path.as_uri(), take_focus=True)
        )
    else:
        ls.say("\n".join(lines))
    return {"lines": list(lines), "path": str(path)}


async def show_evidence(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Opens the full report where the client can show a document, and returns it in any case.

    Arguments: `uri`, `proposal`.
    """
    proposal = _text(arguments, "proposal")
    card = ls.session.card(str(arguments.get("uri", "")), proposal)
    path = Path(ls.settings(ls.root).data_dir) / "reports" / f"{proposal}.md"
    try:
        await ls.off_loop(prompts.write, path, card.report)
    except OSError as error:
        ls.say(f"{path} cannot be written: {error}", types.MessageType.Warning)
        return {"title": card.title, "report": card.report}
    if ls.abilities.show_document:
        await ls.window_show_document_async(
            types.ShowDocumentParams(uri=path.as_uri(), take_focus=True)
        )
    else:
        ls.say(card.report)
    return {"title": card.title, "report": card.report, "path": str(path)}


async def show_program(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Opens the page of a program that `kernel-lsp optimize -- …` has measured where the client can
    show a document, and returns it in any case.

    Arguments: `command`, its words; optional `folder`.
    """
    command = arguments.get("command")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise BadArguments("command is no list of words")
    page: Json = await ls.off_loop(programs.page, ls, _folder(ls, arguments), command)
    if ls.abilities.show_document:
        uri = Path(page["path"]).as_uri()
        await ls.window_show_document_async(types.ShowDocumentParams(uri=uri, take_focus=True))
    else:
        ls.say(page["report"])
    return page


def dismiss(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> None:
    """Silences a hint.

    Arguments: `uri`; `qualname`, or `fingerprint` of a finding without a target; `code`; `scope`
    (`proposal`: this code, `skill`: its kind in this folder); `reason`.
    """
    uri = _text(arguments, "uri")
    if uri not in ls.session.documents:
        raise RequestFailed(f"{uri} is not open")
    scope = "skill" if arguments.get("scope") == "skill" else "proposal"
    reason = str(arguments.get("reason", "unspecified"))
    code = _text(arguments, "code")
    if arguments.get("qualname") is None and arguments.get("fingerprint") is not None:
        own = _text(arguments, "fingerprint")
        ls.record(ls.session.dismiss(uri, None, code, scope, reason, own))
    else:
        ls.record(ls.session.dismiss(uri, _text(arguments, "qualname"), code, scope, reason))
    ls.republish(uri)


def list_kernels(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> list[Json]:
    """Returns all targets of the open documents, also those beyond the number of hints per file;
    first what takes most of a recorded run.

    Arguments: `uri`, optional.
    """
    wanted = arguments.get("uri")
    rows: list[Json] = [
        {
            "uri": uri,
            "qualname": lens.qualname,
            "state": lens.title,
            "share": document.shares.get(lens.qualname),
        }
        for uri, document in ls.session.documents.items()
        if wanted in (None, uri)
        for lens in ls.session.lenses(uri)
    ]
    return sorted(rows, key=lambda row: -(row["share"] or 0.0))


async def entry_points(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Returns the workspace's programs, each with the lines that record and optimize it in a
    terminal; runs nothing.

    Arguments, all optional: `uri` of the file at hand, which comes first; `folder`;
    `configurations`, the debug configurations of VS Code as the editor has read them (else
    `.vscode/launch.json` is read)."""
    uri, configurations = arguments.get("uri"), arguments.get("configurations")
    if uri is not None and not isinstance(uri, str):
        raise BadArguments(f"uri {uri!r} is no text")
    if configurations is not None and not isinstance(configurations, list):
        raise BadArguments("configurations is no list")
    folder = _folder(ls, arguments, ls.place(uri)[0] if uri else None)
    return await entries.list_entries(ls, folder, uri, configurations)


async def record_run(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Asks the editor to offer the programs and a terminal; where it cannot, says the line to run.

    Arguments: as of `kernel-lsp.entryPoints`.
    """
    found = await entry_points(ls, jobs, arguments)
    text = entries.advice(found)
    ls.window_show_message(types.ShowMessageParams(type=types.MessageType.Info, message=text))
    return found


def trust(ls: KernelServer, jobs: ServerJobs, arguments: Json) -> Json:
    """Answers whether code of a folder may run, without being asked.

    Arguments: `folder`, `answer` (`allow`, `on_request`, `never`).
    """
    folder = _folder(ls, arguments)
    try:
        answer = ConsentAnswer(arguments.get("answer", "allow"))
    except ValueError as error:
        raise BadArguments(f"{error}; allowed: {', '.join(ConsentAnswer)}") from error
    jobs.grant(folder, answer)
    return {"folder": folder, "answer": answer.value}


COMMANDS: dict[str, Handler] = {
    "apply": apply,
    "chosen": record_choice,
    "optimize": optimize,
    "benchmark": optimize,
    "searchDeeper": search_deeper,
    "showPrompt": show_prompt,
    "allowRemote": allow_remote,
    "cancel": cancel,
    "status": status,
    "showEvidence": show_evidence,
    "showStatus": show_status,
    "showProgram": show_program,
    "dismiss": dismiss,
    "listKernels": list_kernels,
    "entryPoints": entry_points,
    "recordRun": record_run,
    "trust": trust,
}


def _target(ls: KernelServer, arguments: Json) -> tuple[str, str]:
    uri, qualname = _text(arguments, "uri"), _text(arguments, "qualname")
    if ls.current(uri) is None:
        raise RequestFailed(f"{uri} is not open as a Python document: open it in the editor first")
    return uri, qualname


def _remote(settings: Settings) -> str | None:
    """The other machine that prompts would go to; an endpoint that cannot be read is nobody's."""
    with contextlib.suppress(ConfigError):
        return remote_origin(settings)
    return None


def _limit(arguments: Json, key: str) -> float | None:
    """None: nothing was said."""
    value = arguments.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < math.inf:
        raise BadArguments(f"{key} = {value!r} is no number from 1 on")
    return value


def _count(arguments: Json, key: str) -> int | None:
    value = _limit(arguments, key)
    return None if value is None else int(value)


def _folder(ls: KernelServer, arguments: Json, otherwise: str | None = None) -> str:
    folder = arguments.get("folder") or otherwise or ls.root
    if not isinstance(folder, str) or "\0" in folder:
        raise BadArguments(f"folder {folder!r} is no path")
    return folder


def _text(arguments: Json, key: str) -> str:
    value = arguments.get(key)
    if not isinstance(value, str):
        raise BadArguments(f"the command needs the argument {key!r}: pass one object that has it")
    return value
