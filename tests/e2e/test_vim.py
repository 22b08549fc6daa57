"""Findings while somebody types, and a rewrite from the hint to its undoing, in Vim itself, with
ALE and the settings of docs/how-to/other-editors.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import blocks
from stories import EXAMPLE, ON_CPU, PATIENCE_S, ROOT

ALE = Path("/usr/share/vim-ale")
needs_vim = pytest.mark.skipif(
    not ALE.exists() or shutil.which("vim") is None,
    reason="Vim or ALE is not installed (scripts/setup does)",
)
PAGE = ROOT / "docs" / "how-to" / "other-editors.md"
TEXT = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, gain, signal):
        return torch.diag(gain) @ signal
"""
BEFORE = """set nocompatible
set runtimepath^=/usr/share/vim-ale
let g:ale_linters_explicit = 1
let g:ale_linters = {'python': ['kernel_lsp']}
let g:ale_lint_delay = 0
filetype plugin on
"""
STORY = r"""
function! Told() abort
  let l:found = filter(copy(ale#engine#GetLoclist(bufnr(''))), {_, one -> one.code ==# 'KL105'})
  return map(l:found, {_, one -> one.code . ':' . one.lnum})
endfunction
function! Until(expected) abort
  let l:end = localtime() + 60
  while localtime() < l:end && Told() != a:expected
    sleep 50m
  endwhile
  call writefile([json_encode(Told())], $TOLD, 'a')
endfunction
call Until(['KL105:7'])
call append(0, ['# Two lines above.', ''])
call ale#Queue(0)
call Until(['KL105:9'])
call setline(9, '        return gain[:, None] * signal')
call ale#Queue(0)
call Until([])
qa!
"""


REWRITE = r"""
let s:offered = []
function! Until(condition) abort
  let l:end = localtime() + str2nr($PATIENCE_S)
  while localtime() < l:end && !a:condition()
    sleep 50m
  endwhile
  return a:condition()
endfunction
function! Hint() abort
  return len(filter(copy(ale#engine#GetLoclist(bufnr(''))), {_, one -> one.text =~# 'verified'}))
endfunction
function! Text() abort
  return join(getline(1, '$'), "\n")
endfunction
function! Tell(what) abort
  call writefile([json_encode(a:what)], $TOLD, 'a')
endfunction
runtime autoload/ale/util.vim
function! ale#util#Input(message, value, ...) abort
  let s:offered = filter(split(a:message, "\n"), {_, one -> one =~# '^\d\+) Rewrite Model'})
  return len(s:offered) ? matchstr(s:offered[0], '^\d\+') : ''
endfunction
let s:before = Text()
call Tell(Until(function('Hint')))
call cursor(search('^class Model'), 7)
ALECodeAction
call Tell(Until({-> Text() =~# 'Verified on cpu'}))
call Tell(s:offered)
undo
call Tell(Text() ==# s:before)
qa!
"""


def run_vim(
    tmp_path: Path, name: str, text: str, story: str, environment: dict[str, str], limit_s: int
) -> list[Any]:
    """What the story has written down, in a project with that file."""
    (recipe,) = blocks(PAGE, "vim")
    project = tmp_path / "project"
    project.mkdir()
    (project / name).write_text(text)
    (tmp_path / "vimrc").write_text(f"{BEFORE}runtime plugin/ale.vim\n{recipe.text}")
    (tmp_path / "story.vim").write_text(story)
    done = subprocess.run(
        ["vim", "-N", "-u", str(tmp_path / "vimrc"), "-es", name, "-S",
         str(tmp_path / "story.vim")],
        cwd=project,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "KERNEL_LSP_DATA_DIR": str(tmp_path / "data"),
            "TOLD": str(tmp_path / "told"),
            **environment,
        },
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    assert (tmp_path / "told").exists(), done.stdout + done.stderr
    return [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]


@pytest.mark.timeout(240)
@needs_vim
def test_findings_come_move_and_go(tmp_path: Path) -> None:
    told = run_vim(tmp_path, "model.py", TEXT, STORY, {"KERNEL_LSP_BACKGROUND": "no"}, 230)
    assert told == [["KL105:7"], ["KL105:9"], []]


@pytest.mark.torch
@pytest.mark.timeout(900)
@needs_vim
def test_a_rewrite_is_offered_applied_and_undone(judged: Path, tmp_path: Path) -> None:
    """Where the project is trusted. ALE neither resolves an action nor lets a server edit: the
    action carries its edit."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "cache").symlink_to(judged)
    environment = {**ON_CPU, "PATIENCE_S": str(PATIENCE_S), "KERNEL_LSP_CONSENT": "always"}
    hint, applied, offered, undone = run_vim(
        tmp_path, "example.py", EXAMPLE, REWRITE, environment, 850
    )
    assert hint and applied and undone
    assert "x (" in offered[0]
