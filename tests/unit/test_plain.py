"""Text from outside is shown, and obeyed by nobody: terminals, Markdown, messages to editors."""

import io
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types
from markdown_it import MarkdownIt
from rich.console import Console
from typer.testing import CliRunner

from kernel_lsp import fences
from kernel_lsp.commands import console
from kernel_lsp.commands.app import app
from kernel_lsp.errors import KernelLspError
from kernel_lsp.journal.store import Journal
from kernel_lsp.plain import inert, make_plain, plain
from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter import lsp
from kernel_lsp.records import Event, EventKind, Span
from kernel_lsp.server.lifecycle import make_server

HOSTILE = {
    "color": ("\x1b[31mred\x1b[0m", "red"),
    "title": ("a\x1b]0;rm -rf\x07b", "ab"),
    "link": ("\x1b]8;;http://evil.example\x1b\\here\x1b]8;;\x1b\\", "here"),
    "clipboard": ("\x1b]52;c;cm0gLXJm\x07x", "x"),
    "clear": ("a\x1b[2J\x1b[Hb", "ab"),
    "one byte": ("a\x9b31mb\x9d0;t\x9cc", "abc"),
    "not ended": ("a\x1b]0;everything after\nb", "a\nb"),
    "overwriting": ("all good\rbad", "all good\nbad"),
    "back": ("a\b\b\x7fb\x00\x07", "ab"),
    "direction": ("user\u202e\u2066gnp.exe\u2069", "usergnp.exe"),
    "invisible": ("a\u200b\u2060\ufeff\U000e0041b", "ab"),
    "as it was": ("naïve – 5 µs × 2\n\tok 日本語 👩‍🔬", "naïve – 5 µs × 2\n\tok 日本語 👩‍🔬"),
}
FORBIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\ud800-\udfff]"
)
ODD = "a\x1b[31mb\u202ec\x00"


@pytest.mark.parametrize(("text", "expected"), HOSTILE.values(), ids=HOSTILE)
def test_what_a_terminal_would_obey_is_not_shown(text: str, expected: str) -> None:
    assert plain(text) == expected


@given(st.text(alphabet=st.sampled_from("\x1b[]0;mJ\x07\\\r\n\x9b\x9d\u202e a?P^")))
def test_nothing_of_any_text_is_obeyed(text: str) -> None:
    assert not FORBIDDEN.search(plain(text))
    assert plain(plain(text)) == plain(text)


def test_a_megabyte_takes_no_time() -> None:
    for piece in ("\x1b[", "\x1b]", "\x9b1", "\r", "\u202e", "a"):
        begun = time.thread_time()
        plain(piece * (1_000_000 // len(piece)))
        assert time.thread_time() - begun < 1.0


@pytest.mark.parametrize(
    "text",
    [
        "[run](command:workbench.action.terminal.new)",
        "![x](https://evil.example/beacon.png)",
        "![x][y]\n\n[y]: https://evil.example/b.png",
        "<img src='https://evil.example/b.png'>",
        "</td><script>x</script><!-- y -->",
    ],
)
def test_markdown_of_others_opens_and_loads_nothing(text: str) -> None:
    shown_text = inert(text)
    assert not re.search(r"\][(\[:]|<[A-Za-z/!]", shown_text)
    assert shown_text.replace("\\", "").replace("&lt;", "<") == text
    assert not active(shown_text)


LINK = "![i](https://evil.example/x.png)"


@pytest.mark.parametrize(
    "text",
    [
        f"\\`{LINK}\\`",  # backticks that begin no code
        f"x ``` {LINK} `",
        f"a ` b\n`{LINK}`",
        f"| a | b |\n|---|---|\n| ` {LINK} | ` |",
        "![i]\u200b(https://evil.example/x.png)",  # what is taken out stood between
        "\\<img src=https://evil.example/x.png>",
        "\\\\<img src=https://evil.example/x.png>",
        f"```\nx\r```\r{LINK}\n```",
        f"```\nx\n````\n{LINK}\n```",  # marks of other lengths and places
        f"```\nx\n ```\n{LINK}\n```",
        f"  ```\n```\n{LINK}\n```",
        f"```x`y\n{LINK}\n```",
        f"1. a\n\n   ```\n```\nx\n```\n{LINK}\n```\n",
    ],
)
def test_what_only_looks_like_code_is_inert(text: str) -> None:
    assert not active(inert(text))


PIECES = (
    "`",
    "``",
    "```",
    "````",
    "~~~",
    "\n",
    "\n\n",
    "\\",
    "|",
    " ",
    "    ",
    "> ",
    "- ",
    "1. ",
    "x",
)
PIECES += (LINK, "[a](http://e)", "[a]", "(http://e)", "<img src=x>", "<http://e>", "\u200b", "\r")
PIECES += ("|---|", "# ", "\t", "[a]: http://e")


@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join))
def test_nothing_of_others_is_active(text: str) -> None:
    assert not active(inert(text))


def active(markdown: str) -> set[str]:
    """What of it a reader would open or load."""
    found = set[str]()
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        found |= {one.type for one in (token, *(token.children or ()))}
    return found & {"image", "link_open", "html_block", "html_inline"}


def test_a_text_cannot_end_its_block() -> None:
    text = f" ```\n{LINK}\n+````\n"
    assert not active(fences.fenced(text, "diff"))
    assert inert(fences.fenced(text, "diff")) == fences.fenced(text, "diff")


def test_markdown_of_ours_stays_as_it_is() -> None:
    ours = (
        "# A\n\n**b** `x[0](y)` a < b, c > d\n\n| a | b |\n|---|---|\n\n```diff\n+ x[0](y) "
        "<z>\n```\n"
    )
    assert inert(ours) == ours


def test_an_exception_reaches_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BaseException, match="2"):
        console.fail(
            KernelLspError(f"{ODD} [bold]x[/] \\[link=http://evil]y[/link]", "try \x1b]0;z\x07")
        )
    said = capsys.readouterr().err
    assert not FORBIDDEN.search(said) and "abc" in said and "[link=http://evil]" in said


def test_our_own_colors_stay() -> None:
    stream = io.StringIO()
    made = Console(file=stream, force_terminal=True, color_system="standard", highlight=False)
    made.push_render_hook(console._Plain())
    made.print("[bold]ours[/]", ODD.replace("[", "\\["))
    assert stream.getvalue().startswith("\x1b[1mours\x1b[0m abc")


def test_rows_of_teammates_reach_no_terminal(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        moment = "2026-01-02T03:04:05.500+00:00"
        journal.record(
            [
                Event(
                    kind=EventKind.OFFERED,
                    proposal=ODD,
                    time=moment,
                    qualname=ODD,
                    path=ODD,
                    client=ODD,
                )
            ]
        )
        (summary,) = journal.sessions()
    environment = {"KERNEL_LSP_DATA_DIR": str(tmp_path)}
    for words in (["list"], ["show", summary.id], ["show", summary.id, "--json"]):
        done = CliRunner().invoke(app, ["sessions", *words], env=environment)
        assert done.exit_code == 0 and not FORBIDDEN.search(done.output) and "abc" in plain(
            json.loads(done.output)["events"][0]["path"] if "--json" in words else done.output
        )  # fmt: skip


def test_messages_to_an_editor_are_plain_and_its_edits_exact() -> None:
    server = make_server()
    message = types.ShowMessageParams(type=types.MessageType.Error, message=ODD)
    sent = server.protocol._serialize_message(
        types.ShowMessageNotification(params=message, method="window/showMessage")
    )
    assert sent["params"]["message"] == "abc"
    at = types.Range(
        start=types.Position(line=0, character=0), end=types.Position(line=0, character=0)
    )
    edit = types.WorkspaceEdit(changes={"file:///a": [types.TextEdit(range=at, new_text=ODD)]})
    assert (
        make_plain(server.protocol._serialize_message(edit))["changes"]["file:///a"][0]["newText"]
        == ODD
    )


def test_hovers_are_inert_or_plain() -> None:
    positions = LineIndex("x\n", "utf-16")
    for is_plain in (False, True):
        made = lsp.hover(
            f"**{ODD}** ![a](http://b)", Span(start=0, end=1), positions, plain=is_plain
        )
        assert isinstance(made.contents, types.MarkupContent)
        assert not FORBIDDEN.search(made.contents.value)
        assert is_plain or "](" not in made.contents.value


def test_commands_write_by_this_way_alone() -> None:
    folder = Path(console.__file__).parent
    for path in folder.glob("*.py"):
        if path.name != "console.py":
            other = re.search(
                r"stdout\.write|stderr\.write|^\s*print\(|[^_]Console\(", path.read_text()
            )
            assert other is None, path
