"""Findings while somebody types, in Vim itself, with ALE and the settings of
docs/how-to/other-editors.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks
from stories import ROOT

ALE = Path("/usr/share/vim-ale")
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


@pytest.mark.timeout(240)
@pytest.mark.skipif(
    not ALE.exists() or shutil.which("vim") is None,
    reason="Vim or ALE is not installed (scripts/setup does)",
)
def test_findings_come_move_and_go(tmp_path: Path) -> None:
    (recipe,) = blocks(PAGE, "vim")
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text(TEXT)
    (tmp_path / "vimrc").write_text(f"{BEFORE}runtime plugin/ale.vim\n{recipe.text}")
    (tmp_path / "story.vim").write_text(STORY)
    done = subprocess.run(
        ["vim", "-N", "-u", str(tmp_path / "vimrc"), "-es", "model.py", "-S",
         str(tmp_path / "story.vim")],
        cwd=project,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "KERNEL_LSP_DATA_DIR": str(tmp_path / "data"),
            "KERNEL_LSP_BACKGROUND": "no",
            "TOLD": str(tmp_path / "told"),
        },
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert told == [["KL105:7"], ["KL105:9"], []], done.stdout + done.stderr
