"""The whole story in Neovim itself, with our plugin and the settings of docs/how-to/neovim.md."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from pages import blocks
from stories import CLIENTS, ROOT, home_of, live, program_of, recorded_in, tell

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        shutil.which("nvim") is None, reason="Neovim is not installed (apt install neovim)"
    ),
]
PAGE = ROOT / "docs" / "how-to" / "neovim.md"


def neovim(tmp_path: Path, *more: str) -> list[str]:
    """Neovim without a screen, with a person's settings: those of the page."""
    settings = tmp_path / "init.lua"
    settings.write_text(blocks(PAGE, "lua")[0].text)
    return ["nvim", "--headless", "-u", str(settings), "-i", "NONE", "-n", *more]


def version() -> str:
    said = subprocess.run(["nvim", "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[1].removeprefix("v")


@pytest.mark.timeout(1500)
def test_the_story(tmp_path: Path, judged: Path) -> None:
    project, environment = home_of(tmp_path, judged)
    story = Path(__file__).with_name("neovim_story.lua")
    command = neovim(tmp_path, "example.py", "-c", f"luafile {story}")
    tell("neovim", f"Neovim {version()}", command, project, environment)


RECORDS = """
local choice, command = ...
local offered
vim.ui.select = function(items, options, on_choice)
  if options.kind == 'codeaction' then
    local function is_ours(item) return vim.startswith(item[2].title, 'Record a run') end
    return on_choice(vim.tbl_filter(is_ours, items)[1])
  end
  offered = vim.tbl_map(options.format_item, items)
  on_choice(items[choice])
end
vim.ui.input = function(options, on_input) on_input((options.default:gsub('train', 'other'))) end
local function must(condition, reason)
  if not vim.wait(tonumber(os.getenv('KL_PATIENCE_MS')), condition, 50) then
    io.stdout:write(reason .. '\\n')
    vim.cmd('qa!')
  end
end
must(function() return require('kernel_lsp').client(0) end, 'NO SERVER')
vim.api.nvim_buf_set_lines(0, -1, -1, false, { '# typed, and not saved yet' })
if command == 'code action' then
  vim.fn.search('class Model', 'w')
  must(function()
    vim.lsp.codelens.refresh() -- as BufEnter and InsertLeave do
    local lens = vim.lsp.codelens.get(0)[1]
    return lens and lens.command.title:find('record a run')
  end, 'NO LENS')
  vim.lsp.buf.code_action()
else
  vim.cmd(command)
end
must(function() return offered and vim.bo.buftype == 'terminal' end, 'NO TERMINAL')
local function text() return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\\n') end
must(function() return text():find('Process exited') end, 'NOT ENDED')
io.stdout:write('OFFERED ' .. table.concat(offered, ', ') .. '\\nDONE\\n')
vim.cmd('qa!')
"""


@pytest.mark.parametrize(
    ("choice", "program"), [(1, "train"), (3, "other")], ids=["listed", "typed"]
)
@pytest.mark.parametrize("command", ["KernelLsp record", "KernelLspRecord", "code action"])
def test_a_program_is_chosen_and_recorded_in_a_terminal(
    tmp_path: Path, choice: int, program: str, command: str
) -> None:
    project, environment = program_of(tmp_path)
    story = tmp_path / "records.lua"
    story.write_text(RECORDS)
    call = f"lua assert(loadfile('{story}'))({choice}, '{command}')"
    steps = live(neovim(tmp_path, "train.py", "-c", call), project, environment)
    assert steps["OFFERED"] == "train.py (script), other.py (script), Another program…"
    assert recorded_in(project) == [f"{program}.recorded.toml"]
    assert (project / "train.py").read_text().endswith("# typed, and not saved yet\n")


def test_a_missing_server_is_said_once_with_the_remedy(tmp_path: Path) -> None:
    project, environment = home_of(tmp_path, tmp_path)
    environment["PATH"] = "/usr/bin:/bin"
    look = "lua vim.wait(300); vim.cmd('new example.py')"
    command = neovim(
        tmp_path, "example.py", "-c", look, "-c", "KernelLsp rewrite", "-c", "KernelLsp doctor"
    )
    command += ["-c", "lua vim.wait(300)", "-c", "qa!"]
    done = subprocess.run(
        command,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = done.stdout + done.stderr
    clone = f"{environment['HOME']}/kernel-lsp"
    assert said.count(f"is not installed: pip install {clone}, or name it in cmd") == 1
    assert "no server for this buffer" in said
    assert "Error" not in said


def test_every_command_of_the_page_is_one_and_all_are_there(tmp_path: Path) -> None:
    command = neovim(
        tmp_path, "-c", "lua print(table.concat(require('kernel_lsp.commands').complete(''), ' '))"
    )
    project, environment = home_of(tmp_path, tmp_path)
    done = subprocess.run(
        [*command, "-c", "qa!"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    names = set((done.stdout + done.stderr).split())
    for text in (PAGE.read_text(), (CLIENTS / "neovim/doc/kernel_lsp.txt").read_text()):
        shown = {
            line.split()[1].rstrip("`")
            for line in text.replace("| `", "").splitlines()
            if line[:10] == ":KernelLsp"
        }
        assert shown == names


def test_the_help_file_is_one(tmp_path: Path) -> None:
    shutil.copytree(CLIENTS / "neovim" / "doc", tmp_path / "doc")
    command = [
        "nvim",
        "--headless",
        "-u",
        "NONE",
        "-i",
        "NONE",
        "-c",
        f"helptags {tmp_path}/doc",
        "-c",
        "qa!",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stderr == ""
    assert ":KernelLsp" in (tmp_path / "doc" / "tags").read_text()


def test_from_0_11_on_the_configuration_is_a_table_that_neovim_takes(tmp_path: Path) -> None:
    """There is no newer Neovim in Debian: its loader reads a table of these types."""
    check = (
        "lua local c = dofile('lsp/kernel_lsp.lua'); "
        "vim.validate({cmd = {c.cmd, 'table'}, filetypes = {c.filetypes, 'table'}, "
        "root_markers = {c.root_markers, 'table'}, handlers = {c.handlers, 'table'}, "
        "on_exit = {c.on_exit, 'function'}}); "
        "assert(c.capabilities.experimental.serverStatusNotification); "
        "print(table.concat(c.cmd, ' '))"
    )
    command = ["nvim", "--headless", "-u", "NONE", "-i", "NONE", "-c", check, "-c", "qa!"]
    done = subprocess.run(
        command, cwd=CLIENTS / "neovim", capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.stdout + done.stderr).strip() == "kernel-lsp serve"
