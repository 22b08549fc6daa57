"""What was measured of a whole program, in an editor: one action for all edits, or a choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from editor_client import EDITORS, Editor, Launch, apply_edit
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from kernel_lsp import analysis, offers
from kernel_lsp.records import FileChange, ProgramEdit, ProgramOffer, ProgramRewrite

SILENT = {"consent": "never"}
COMMAND = ("python", "train.py", "--name", "é 😀")
MODEL = '"""😀"""\nimport torch\n\n\ndef helper(x):\n    return x\n'
TRAIN = "import torch\r\nfrom model import helper\r\n\r\noptimizer = torch.optim.SGD(p)\r\n"
AFTER_MODEL = MODEL.replace("    return x\n", "    return x + 0\n")
AFTER_TRAIN = TRAIN.replace("SGD(p)", "SGD(p, fused=True)")
PATCH = "# a patch\n"
GAIN = "412 ms -> 371 ms per step, 1.11x (1.10–1.12) against torch.compile"


def offer_in(session: Editor) -> ProgramOffer:
    """Three edits of three files, one of which is new; and the page."""
    model, train = session.folder / "model.py", session.folder / "train.py"
    model.write_bytes(MODEL.encode())
    patch = session.folder / "kernel_lsp_patches" / "library.py"

    def change(path: Path, text: str, old: str, new: str) -> FileChange:
        start = text.index(old)
        return FileChange(path=str(path), start=start, end=start + len(old), new=new)

    offer = ProgramOffer(
        root=str(session.folder),
        command=COMMAND,
        created="2026-11-24T00:00:00.000+00:00",
        gain=GAIN,
        edits=(
            ProgramEdit(
                label="helper", changes=(change(model, MODEL, "return x", "return x + 0"),)
            ),
            ProgramEdit(
                label="a fused optimizer", changes=(change(train, TRAIN, "(p)", "(p, fused=True)"),)
            ),
            ProgramEdit(
                label="patches", changes=(FileChange(path=str(patch), start=0, end=0, new=PATCH),)
            ),
        ),
        before={str(model): offers.digest(MODEL), str(train): offers.digest(TRAIN)},
        rewrites=(
            ProgramRewrite(
                proposal="of helper",
                path=str(model),
                qualname="helper",
                before=analysis.fingerprint_of(MODEL, "helper") or "",
                after=analysis.fingerprint_of(AFTER_MODEL, "helper") or "",
            ),
        ),
    )
    offers.write(session.data_dir, session.folder, COMMAND, offer, "# the page\n")
    return offer


def applied(session: Editor, edit: types.WorkspaceEdit) -> dict[str, str]:
    """Files after an edit, by name, as the editor would make them."""
    encoding = str(session.result.capabilities.position_encoding or "utf-16")
    known = {"model.py": MODEL, "train.py": TRAIN, "library.py": ""}
    parts: dict[str, Any] = {}
    for part in edit.document_changes or []:
        if isinstance(part, types.TextDocumentEdit):
            parts[part.text_document.uri] = types.WorkspaceEdit(document_changes=[part])
    parts |= dict.fromkeys(edit.changes or {}, edit)
    names = {uri: uri.rpartition("/")[2] for uri in parts}
    return {
        names[uri]: apply_edit(known[names[uri]], one, uri, encoding) for uri, one in parts.items()
    }


@pytest.mark.parametrize("editor", EDITORS[:1] + EDITORS[2:])
async def test_all_edits_of_a_program_are_one_action_or_a_choice(
    launch: Launch, editor: str
) -> None:
    async with launch(editor, options=SILENT) as session:
        offer_in(session)
        uri = session.open("train.py", TRAIN)
        found = [one for one in await session.actions(uri, "optimizer") if "train.py" in one.title]
        whole, *choices, show = found
        assert whole.title == (
            f"Make python train.py --name 'é 😀' faster: 3 edits in 3 files, {GAIN}"
        )
        assert whole.edit is not None and whole.disabled is None
        after = {"model.py": AFTER_MODEL, "train.py": AFTER_TRAIN, "library.py": PATCH}
        assert applied(session, whole.edit) == after
        parts = whole.edit.document_changes or []
        made = [one for one in parts if isinstance(one, types.CreateFile)]
        if editor.startswith("visual"):
            assert len(made) == 1, "an empty file is made before it is filled"
            (choice,) = choices
            assert choice.edit is not None and choice.edit.change_annotations is not None
            asked = choice.edit.change_annotations.values()
            assert [one.label for one in asked] == ["helper", "a fused optimizer", "patches"]
            assert all(one.needs_confirmation for one in asked)
            assert applied(session, choice.edit) == after
        elif len(choices) == 3:
            edits = [applied(session, one.edit) for one in choices if one.edit is not None]
            assert edits == [{name: after[name]} for name in ("model.py", "train.py", "library.py")]
        assert show.command is not None
        page = await session.command("showProgram", **show.command.arguments[0])
        assert page["report"] == "# the page\n"
        automatic = await session.actions(
            uri, "optimizer", trigger_kind=types.CodeActionTriggerKind.Automatic
        )
        assert not any("train.py" in one.title for one in automatic), "only where it is asked for"


async def test_an_offer_of_files_that_changed_is_refused_with_the_reason(launch: Launch) -> None:
    async with launch(options=SILENT) as session:
        offer = offer_in(session)
        uri = session.open("train.py", TRAIN)
        (session.folder / "model.py").write_text("x = 1\n")
        whole, show = [
            one for one in await session.actions(uri, "optimizer") if "train.py" in one.title
        ]
        assert whole.edit is None and whole.disabled is not None
        assert "model.py changed since it was measured" in whole.disabled.reason
        assert show.title.startswith("Show what was measured")
        (session.folder / "model.py").write_bytes(MODEL.encode())
        patch = session.folder / "kernel_lsp_patches" / "library.py"
        patch.parent.mkdir()
        patch.write_text("mine\n")  # what was not there would be written over
        assert str(patch) in offer.paths
        (whole, _) = [
            one for one in await session.actions(uri, "optimizer") if "train.py" in one.title
        ]
        assert whole.disabled is not None and "library.py changed" in whole.disabled.reason
        other = session.open("other.py", "x = 1\n")
        assert not any("train.py" in one.title for one in await session.actions(other, "x"))
        with pytest.raises(JsonRpcException, match="nothing is known of python other"):
            await session.command("showProgram", command=["python", "other.py"])
        with pytest.raises(JsonRpcException, match="command is no list of words"):
            await session.command("showProgram", command="python")


async def test_the_journal_follows_a_rewrite_that_was_applied_with_a_whole_program(
    launch: Launch,
) -> None:
    async with launch(options=SILENT) as session:
        offer_in(session)
        uri = session.open("train.py", TRAIN)
        await session.actions(uri, "optimizer")
        assert (await session.event("offered"))["proposal"] == "of helper"
        model = session.open("model.py", AFTER_MODEL)  # as an editor does that applies all edits
        accepted = await session.event("accepted")
        assert (accepted["proposal"], accepted["path"]) == ("of helper", "model.py")
        session.save(model)
        await session.event("kept")
        session.change(model, MODEL)
        await session.event("reverted")
