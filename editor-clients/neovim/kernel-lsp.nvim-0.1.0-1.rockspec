-- For luarocks.org, from where rocks.nvim and lazy.nvim install: `luarocks upload` this file.
rockspec_format = '3.0'
package = 'kernel-lsp.nvim'
version = '0.1.0-1'
source = {
  url = 'git+https://github.com/kernel-lsp/kernel-lsp',
  tag = 'v0.1.0',
  dir = 'kernel-lsp/editor-clients/neovim',
}
description = {
  summary = 'Measured, checked rewrites of PyTorch and Triton code: the client of kernel-lsp',
  homepage = 'https://github.com/kernel-lsp/kernel-lsp',
  license = 'Apache-2.0',
  labels = { 'neovim', 'lsp', 'pytorch' },
}
dependencies = { 'lua >= 5.1' }
build = {
  type = 'builtin',
  modules = {
    ['kernel_lsp'] = 'lua/kernel_lsp/init.lua',
    ['kernel_lsp.commands'] = 'lua/kernel_lsp/commands.lua',
    ['kernel_lsp.diff'] = 'lua/kernel_lsp/diff.lua',
    ['kernel_lsp.health'] = 'lua/kernel_lsp/health.lua',
    ['kernel_lsp.programs'] = 'lua/kernel_lsp/programs.lua',
  },
  copy_directories = { 'doc', 'lsp', 'plugin' },
}
