"""The server as editors see it. The host is replaced where a fault or a ready verdict is needed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest
from editor_client import EDITORS, EXAMPLE, PATIENCE_S, Editor, Launch, apply_edit, until
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from stories import TAKEN_BACK

from kernel_lsp.confinement import entry

SILENT = {"static_hints": False}


def encoding_of(session: Editor) -> str:
    return str(session.result.capabilities.position_encoding or "utf-16")


@pytest.mark.parametrize("editor", EDITORS)
async def test_a_rewrite_in_an_editor(launch: Launch, editor: str) -> None:
    """Taken and undone, refused for changed code, and right in nasty text: one session has all of
    it."""
    async with launch(editor) as session:
        await the_offered_rewrite_becomes_accepted_and_undo_reverts_it(session, editor)
        await a_rewrite_of_changed_code_is_refused(session)
        await nasty_text_survives_byte_for_byte(session)


async def the_offered_rewrite_becomes_accepted_and_undo_reverts_it(
    session: Editor, editor: str
) -> None:
    uri = session.open("model.py", EXAMPLE)
    await session.hint(uri)
    action = await session.rewrite(uri)
    after = await session.take(uri, action)
    assert after == EXAMPLE.replace("torch.sum(x, dim=1)", "x.sum(1)")
    await session.event("accepted")
    session.change(uri, EXAMPLE)
    reverted = await session.event("reverted")
    assert reverted["client"].startswith(editor.partition("@")[0])
    assert session.kinds() in TAKEN_BACK


async def a_rewrite_of_changed_code_is_refused(session: Editor) -> None:
    uri, before = session.open("changed.py", EXAMPLE.replace("dim=1", "dim=0")), len(session.edits)
    action = await session.rewrite(uri)
    session.change(uri, EXAMPLE.replace("dim=1", "dim=0, keepdim=True"))
    with pytest.raises(JsonRpcException) as refusal:
        await edit_of(session, action)
    assert refusal.value.code == types.LSPErrorCodes.RequestFailed.value
    assert "changed since it was measured" in str(refusal.value)
    assert len(session.edits) == before


async def edit_of(session: Editor, action: types.CodeAction) -> types.WorkspaceEdit:
    """What the editor is told to change: in answer to its question, or in one of the server
    (Emacs)."""
    if action.data is not None:
        edit = (await session.client.code_action_resolve_async(action)).edit
        assert edit is not None
        return edit
    assert action.command is not None
    await session.command("apply", **action.command.arguments[0])
    return session.edits[-1].edit


async def test_a_client_that_lies_about_applying_is_refused_not_accepted(launch: Launch) -> None:
    async with launch("emacs@v29.1") as session:
        uri = session.open("model.py", EXAMPLE)
        action = await session.rewrite(uri)
        assert action.command is not None
        assert await session.command("apply", **action.command.arguments[0]) == {"applied": True}
        refused = await session.event("refused")
        assert refused["data"]["client_said"]["applied"] is True
        assert "accepted" not in session.kinds()


async def test_a_client_that_is_late_is_accepted(launch: Launch) -> None:
    async with launch("emacs@v29.1", server="patient_server") as session:
        uri = session.open("model.py", EXAMPLE)
        action = await session.rewrite(uri)
        assert action.command is not None
        await session.command("apply", **action.command.arguments[0])
        await asyncio.sleep(0.6)
        session.change(uri, apply_edit(EXAMPLE, session.edits[0].edit, uri, encoding_of(session)))
        await session.event("accepted")
        assert "refused" not in session.kinds()


NASTY = (
    '"""caf\u00e9 \U0001f600 \u2028 inside \x0c and \x85"""\r\n'
    "import torch\r\nfrom torch import nn\r\n\x0c\r\n"
    "class Model(nn.Module):\r\n\tdef forward(self, x):  # \U0001f600\r\n"
    '\t\ts = "\U0001f600\u4e2d"; y = torch.sum(x, dim=1)\r\n\t\treturn y\r\n'
    "\r\ndef get_inputs():\r\n\treturn [torch.randn(4, 8)]"
)


async def nasty_text_survives_byte_for_byte(session: Editor) -> None:
    """Form feed, NEL, U+2028, emoji, CRLF, tabs and no final line end, typed incrementally
    before."""
    uri = session.open("nasty.py", NASTY)
    start = types.Position(line=6, character=0)
    insert = types.TextDocumentContentChangePartial(
        range=types.Range(start=start, end=start), text="\t\t# typed\r\n"
    )
    document = types.VersionedTextDocumentIdentifier(uri=uri, version=2)
    session.client.text_document_did_change(
        types.DidChangeTextDocumentParams(text_document=document, content_changes=[insert])
    )
    line = '\t\ts = "'
    text = NASTY.replace(line, "\t\t# typed\r\n" + line)
    session.texts[uri] = text
    edit = await edit_of(session, await session.rewrite(uri))
    after = apply_edit(text, edit, uri, encoding_of(session))
    assert after == text.replace("torch.sum(x, dim=1)", "x.sum(1)")


async def test_what_was_verified_stays_as_it_was_told_until_it_is_dismissed(launch: Launch) -> None:
    """One session with one verified rewrite, and everything that an editor may do about it in
    between."""
    async with launch() as session:
        assert (await session.command("status"))["device"] is None
        uri = session.open("model.py", EXAMPLE)
        hint = await session.hint(uri)
        assert (await session.command("status"))["device"] is not None
        await automatic_requests_do_not_count_as_offers(session, uri)
        await hints_are_hints_and_an_unchanged_set_is_not_sent_again(session, uri)
        await cancelled_hovers_do_not_delay_the_next(session, uri)
        await a_syntax_error_keeps_the_last_good_state(session, uri)
        await an_edit_elsewhere_keeps_the_offer_at_its_new_place(
            session, uri, hint.range.start.line
        )
        await never_offered_for_fix_all_or_source_actions(session, uri)
        await dismissal_silences_this_code_and_is_logged(session, uri)
        assert psutil.Process(session.server_pid).memory_info().rss < 60 * 2**20


async def automatic_requests_do_not_count_as_offers(session: Editor, uri: str) -> None:
    await session.actions(uri, trigger_kind=types.CodeActionTriggerKind.Automatic)
    await asyncio.sleep(0.3)
    assert "offered" not in session.kinds()


async def hints_are_hints_and_an_unchanged_set_is_not_sent_again(session: Editor, uri: str) -> None:
    sent = session.client.diagnostics[uri]
    assert all(d.severity is types.DiagnosticSeverity.Hint for d in sent)
    marker: list[types.Diagnostic] = []
    session.client.diagnostics[uri] = marker
    session.change(uri, EXAMPLE + "\n# nothing of interest\n")
    await asyncio.sleep(0.6)
    assert session.client.diagnostics[uri] is marker
    session.client.diagnostics[uri] = sent


async def cancelled_hovers_do_not_delay_the_next(session: Editor, uri: str) -> None:
    params = types.HoverParams(
        text_document=types.TextDocumentIdentifier(uri=uri),
        position=types.Position(line=4, character=7),
    )
    for number in range(30):
        session.client.protocol.send_request(
            types.TEXT_DOCUMENT_HOVER, params, msg_id=9000 + number
        )
        session.client.cancel_request(types.CancelParams(id=9000 + number))
    hover = await asyncio.wait_for(session.client.text_document_hover_async(params), PATIENCE_S)
    assert hover is not None
    assert isinstance(hover.contents, types.MarkupContent)
    assert "2.00x (1.90–2.10)" in hover.contents.value
    assert hover.contents.value.count("\n") < 15


async def a_syntax_error_keeps_the_last_good_state(session: Editor, uri: str) -> None:
    session.change(uri, EXAMPLE + "def broken(:\n")
    await asyncio.sleep(0.4)
    assert any("verified" in d.message for d in session.client.diagnostics[uri])
    lenses = await session.client.text_document_code_lens_async(
        types.CodeLensParams(text_document=types.TextDocumentIdentifier(uri=uri))
    )
    assert lenses


async def an_edit_elsewhere_keeps_the_offer_at_its_new_place(
    session: Editor, uri: str, line: int
) -> None:
    """``line``: where the hint was."""
    moved = "# one\n# two\n" + EXAMPLE
    session.change(uri, moved)
    edit = await edit_of(session, await session.rewrite(uri))
    after = apply_edit(moved, edit, uri, encoding_of(session))
    assert after == moved.replace("torch.sum(x, dim=1)", "x.sum(1)")
    await until(
        lambda: [d for d in session.client.diagnostics[uri] if d.range.start.line == line + 2]
    )


async def never_offered_for_fix_all_or_source_actions(session: Editor, uri: str) -> None:
    assert await session.actions(uri, only=[types.CodeActionKind.SourceFixAll]) == []
    fixes = await session.actions(uri, only=[types.CodeActionKind.QuickFix])
    assert {action.kind for action in fixes} == {"quickfix.kernel"}


async def dismissal_silences_this_code_and_is_logged(session: Editor, uri: str) -> None:
    items = await session.actions(uri)
    dismiss = next(i for i in items if i.title.startswith("Dismiss"))
    assert dismiss.command is not None
    await session.client.workspace_execute_command_async(
        types.ExecuteCommandParams(
            command=dismiss.command.command, arguments=dismiss.command.arguments
        )
    )
    assert not [i for i in await session.actions(uri) if i.title.startswith("Rewrite")]
    assert (await session.event("dismissed"))["data"]["scope"] == "proposal"
    await until(lambda: not any("verified" in d.message for d in session.client.diagnostics[uri]))


async def test_nonsense_is_answered_and_is_no_pop_up(launch: Launch) -> None:
    """A change of a document that was never opened, and malformed parameters."""
    async with launch() as session:
        uri = (session.folder / "never.py").as_uri()
        session.versions[uri] = 1
        session.change(uri, "x = 1\n")
        assert (await session.command("status"))["jobs"] == []
        answer: Future[object] = Future()
        session.client.protocol._request_futures["bad"] = answer
        body = b'{"jsonrpc":"2.0","id":"bad","method":"textDocument/hover","params":{"nonsense":1}}'
        session.client.protocol.writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        with pytest.raises(JsonRpcException):
            await asyncio.wait_for(asyncio.wrap_future(answer), PATIENCE_S)
        assert session.client.messages == []


async def test_nothing_runs_while_consent_is_not_answered(launch: Launch) -> None:
    async with launch(answer=None) as session:
        uri = session.open("model.py", EXAMPLE)
        await until(lambda: session.questions)
        await asyncio.sleep(0.5)
        assert len(session.questions) == 1
        assert [item.title for item in session.questions[0].actions or []] == [
            "Allow for this folder", "Only when I ask", "Never",
        ]  # fmt: skip
        assert not [d for d in session.client.diagnostics.get(uri, ()) if "verified" in d.message]


@pytest.mark.parametrize(("answer", "runs"), [("Only when I ask", True), ("Never", False)])
async def test_an_explicit_request_obeys_the_answer(
    launch: Launch, answer: str, runs: bool
) -> None:
    async with launch(answer=answer) as session:
        uri = session.open("model.py", EXAMPLE)
        await until(lambda: session.questions)
        await session.command("benchmark", uri=uri, qualname="Model")
        if runs:
            await session.hint(uri)
        else:
            await until(lambda: session.client.messages)
            assert "kernel-lsp trust" in session.client.messages[0].message


async def test_an_untrusted_workspace_is_never_measured(launch: Launch) -> None:
    async with launch(options={"isTrusted": False}) as session:
        uri = session.open("model.py", EXAMPLE)
        await session.command("benchmark", uri=uri, qualname="Model")
        await until(lambda: session.client.messages)
        assert not session.questions


async def test_a_dying_host_leaves_the_server_answering(launch: Launch) -> None:
    async with launch(fault="crash") as session:
        uri = session.open("model.py", EXAMPLE)
        await session.command("benchmark", uri=uri, qualname="Model")
        await until(lambda: session.client.messages)
        assert "was not measured" in session.client.messages[0].message
        await session.jobs()
        assert await session.actions(uri)


async def test_progress_appears_and_its_button_cancels_the_job(launch: Launch) -> None:
    async with launch(fault="slow") as session:
        uri = session.open("model.py", EXAMPLE)
        await until(lambda: any(session.client.progress_reports.values()))
        token, reports = next(iter(session.client.progress_reports.items()))
        assert reports[0].title == "kernel-lsp: Model"
        assert reports[0].cancellable is True
        session.client.window_work_done_progress_cancel(
            types.WorkDoneProgressCancelParams(token=token)
        )
        await session.event("host_cancelled")
        await until(lambda: isinstance(reports[-1], types.WorkDoneProgressEnd))
        lenses = await session.client.text_document_code_lens_async(
            types.CodeLensParams(text_document=types.TextDocumentIdentifier(uri=uri))
        )
        assert [
            lens.command.title for lens in lenses if "Model" in str(lens.command.arguments)
        ] == ["▷ measure"]


async def test_a_verified_rewrite_is_offered_while_its_job_still_runs(launch: Launch) -> None:
    async with launch(fault="early") as session:
        uri = session.open("model.py", EXAMPLE)
        await session.hint(uri)
        assert (await session.command("status"))["jobs"] == ["Model"]
        after = await session.take(uri, await session.rewrite(uri))
        assert after == EXAMPLE.replace("torch.sum(x, dim=1)", "x.sum(1)")
        await session.event("accepted")
        await session.event("host_cancelled")  # it measured code that is gone


async def test_who_asks_does_not_wait_for_a_job_that_waits_for_a_quiet_machine(
    launch: Launch,
) -> None:
    async with launch(fault="slow") as session:
        path = session.data_dir / "jobs.jsonl"

        def started() -> list[bool]:
            lines = path.read_text().splitlines() if path.exists() else []
            return [json.loads(line)["background"] for line in lines]

        uri = session.open("model.py", EXAMPLE)
        await until(lambda: started() == [True])
        await session.command("optimize", uri=uri, qualname="Model")
        await until(lambda: started() == [True, False])
        await session.event("host_cancelled")
        await session.command("optimize", uri=uri, qualname="Model")  # joins the one that was asked
        await session.jobs("Model")
        assert started() == [True, False]


def logged(session: Editor, words: str) -> list[str]:
    return [one.message for one in session.client.log_messages if words in one.message]


async def test_what_a_busy_machine_cut_short_is_tried_again(launch: Launch) -> None:
    async with launch(fault="busy", server="hasty_server") as session:
        uri = session.open("model.py", EXAMPLE)
        await session.hint(uri)
        assert (
            len(
                logged(
                    session, "Model was not measured: the machine was too busy; it is tried again"
                )
            )
            == 2
        )
        assert session.client.messages == []


async def test_a_machine_that_stays_busy_is_left_alone_and_one_line_says_so(launch: Launch) -> None:
    async with launch(fault="busier", server="hasty_server") as session:
        uri = session.open("model.py", EXAMPLE)
        await until(lambda: logged(session, "it is not tried again"))
        await asyncio.sleep(0.5)  # longer than a pause
        assert len((session.data_dir / "jobs.jsonl").read_text().splitlines()) == 4
        assert session.client.messages == []
        await session.command("optimize", uri=uri, qualname="Model")  # who asks is told
        await until(
            lambda: [one.message for one in session.client.messages if "busy" in one.message]
        )


async def test_no_interpreter_of_the_folder_is_run_before_consent(
    launch: Launch, tmp_path: Path
) -> None:
    python = tmp_path / "project" / ".venv" / "bin" / "python"
    ran = tmp_path / "ran"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    none = {"VIRTUAL_ENV": "", "CONDA_PREFIX": "", entry.RECORD: str(ran)}

    def started() -> bool:
        return ran.exists() and str(python) in ran.read_text()

    async with launch(fault=None, answer=None, environment=none) as session:
        uri = session.open("model.py", EXAMPLE)
        await until(lambda: session.questions)
        await session.command("status")
        await asyncio.sleep(1.0)
        assert not started()
        await session.command("trust")
        await session.command("benchmark", uri=uri, qualname="Model")
        await until(started)


def write(uri: str, text: str) -> None:
    Path(uri.removeprefix("file://")).write_text(text)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def slow_job(session: Editor) -> list[int]:
    """Start a job that never ends; returns the processes it consists of."""
    uri = session.open("model.py", EXAMPLE)
    await session.command("benchmark", uri=uri, qualname="Model")
    file = session.data_dir / "events.jsonl.pids"
    await until(lambda: file.exists() and file.read_text().strip())
    return [int(pid) for pid in file.read_text().split()]


async def test_shutdown_with_a_running_job_leaves_nothing_behind(launch: Launch) -> None:
    async with launch(fault="slow") as session:
        pids = await slow_job(session)
        # The job would never end.
        await asyncio.wait_for(session.client.shutdown_session(), PATIENCE_S)
        assert session.client._server.returncode == 0
        await until(lambda: all(gone(pid) for pid in pids))
        session.client.error = RuntimeError("shut down already")


async def test_kill_of_the_server_takes_the_host_along(launch: Launch) -> None:
    async with launch(fault="slow", stop=False) as session:
        host = (await slow_job(session))[0]
        os.kill(session.server_pid, signal.SIGKILL)
        await until(lambda: gone(host))


async def test_exit_without_shutdown_is_an_error_code(launch: Launch) -> None:
    async with launch(stop=False) as session:
        session.client.exit(None)
        assert await asyncio.wait_for(session.client._server.wait(), PATIENCE_S) == 1


def strip_everything(capabilities: types.ClientCapabilities) -> None:
    capabilities.window = None
    capabilities.workspace = None
    document = capabilities.text_document
    assert document is not None
    document.code_action = types.CodeActionClientCapabilities(
        code_action_literal_support=document.code_action.code_action_literal_support
    )
    document.code_lens = None
    document.publish_diagnostics = None


async def test_a_poor_client_gets_nothing_that_it_did_not_announce(launch: Launch) -> None:
    async with launch("neovim@v0.7.0", strip=strip_everything) as session:
        uri = session.open("model.py", EXAMPLE)
        hint = await session.hint(uri)
        assert hint.data is None
        action = await session.rewrite(uri)
        assert action.command is None and action.edit is not None  # all that such a client can take
        assert "torch.sum" not in apply_edit(EXAMPLE, action.edit, uri, encoding_of(session))
        assert session.requests == []
        assert session.client.progress_reports == {}
        evidence = next(one for one in await session.actions(uri) if "evidence" in one.title)
        with pytest.raises(JsonRpcException, match="neither resolve"):
            await session.command("apply", **evidence.command.arguments[0])


async def test_lenses_that_were_asked_for_too_early_come_when_they_are_known(
    launch: Launch,
) -> None:
    text = EXAMPLE.replace(
        "class Model", "class Model(nn.Module):\n    pass\n\n\n" * 500 + "class Model", 1
    )
    async with launch(options={"settings": {"background": False}}) as session:
        for number in range(20):  # on a busy machine a question may come late
            document = types.TextDocumentIdentifier(uri=session.open(f"model{number}.py", text))
            early = await session.client.text_document_code_lens_async(
                types.CodeLensParams(text_document=document)
            )
            if not early:
                break
        assert not early
        await until(lambda: "workspace/codeLens/refresh" in session.requests)
        lenses = await session.client.text_document_code_lens_async(
            types.CodeLensParams(text_document=document)
        )
        assert lenses


async def test_a_checkout_on_disk_after_closing_is_seen(launch: Launch) -> None:
    async with launch() as session:
        uri = session.open("model.py", EXAMPLE)
        action = await session.rewrite(uri)
        resolved = await session.client.code_action_resolve_async(action)
        assert resolved.edit is not None
        after = apply_edit(EXAMPLE, resolved.edit, uri, encoding_of(session))
        session.change(uri, after)
        await session.command("chosen", **action.command.arguments[0])
        await session.event("accepted")
        session.save(uri)
        await session.event("kept")
        document = types.TextDocumentIdentifier(uri=uri)
        session.client.text_document_did_close(
            types.DidCloseTextDocumentParams(text_document=document)
        )
        # Answered after it was closed, which looks at the disk once.
        await session.command("status")
        await asyncio.sleep(0.3)
        write(uri, EXAMPLE)
        reverted = await session.event("reverted")
        assert reverted["data"]["how"] == "disk"


async def test_a_bad_setting_is_reported_and_the_server_goes_on(launch: Launch) -> None:
    async with launch(options={"settings": {"threshold": "fast", "no-such": 1}}) as session:
        status = await session.command("status")
        assert any("threshold = 'fast'" in problem for problem in status["folders"][0]["problems"])
        logged = " ".join(message.message for message in session.client.log_messages)
        assert "threshold = 'fast' cannot be used" in logged
        assert "1.05 is used" in logged
        assert "unknown setting 'no-such'" in logged


async def test_two_folders_have_their_own_settings_and_interpreters(
    launch: Launch, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, name in ((one, 1.5), (two, 2.5)):
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/python").write_text("")
        (folder / "pyproject.toml").write_text(f"[tool.kernel-lsp]\nthreshold = {name}\n")
    without = {"VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    async with launch(folders=[one, two], environment=without) as session:
        status = await session.command("status")
        found = {
            f["folder"]: (f["interpreter"], f["settings"]["threshold"]) for f in status["folders"]
        }
        assert found[str(one)] == (str(one / ".venv/bin/python"), 1.5)
        assert found[str(two)] == (str(two / ".venv/bin/python"), 2.5)


async def test_a_finding_is_mended_by_its_own_fix(launch: Launch) -> None:
    text = (Path(__file__).parents[1] / "cases" / "KL203_int32_offset_overflow.py").read_text()
    async with launch() as session:
        uri = session.open("kernels.py", text)
        found = await session.hint(uri, words="computed in 32 bits")
        params = types.CodeActionParams(
            text_document=types.TextDocumentIdentifier(uri=uri),
            range=found.range,
            context=types.CodeActionContext(
                diagnostics=[found], only=[types.CodeActionKind.QuickFix]
            ),
        )
        offered = await session.client.text_document_code_action_async(params)
        edits = [
            action
            for action in offered or []
            if isinstance(action, types.CodeAction) and action.edit
        ]
        fix, leave_out = edits
        assert "KL203" in leave_out.title  # a comment that leaves the finding out
        assert fix.title == "Compute this offset in 64 bits (KL203)" and list(
            fix.diagnostics or ()
        ) == [found]
        assert fix.edit is not None
        after = apply_edit(text, fix.edit, uri, encoding_of(session))
        assert after == text.replace(
            "base = batch * length", "base = batch.to(tl.int64) * length", 1
        )
