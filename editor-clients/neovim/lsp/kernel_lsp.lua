-- How Neovim starts kernel-lsp. From 0.11 on: vim.lsp.enable('kernel_lsp'); before: require('kernel_lsp').setup().
-- What it does with the server's messages is in lua/kernel_lsp/init.lua; what is measured is the server's.
return {
  cmd = { 'kernel-lsp', 'serve' },
  filetypes = { 'python' },
  root_markers = { 'pyproject.toml', 'setup.py', '.git' },
  capabilities = vim.tbl_deep_extend('force', vim.lsp.protocol.make_client_capabilities(), {
    experimental = { serverStatusNotification = true },
  }),
  handlers = {
    ['experimental/serverStatus'] = function(_, params) require('kernel_lsp').on_status(params) end,
  },
  on_exit = function(code, signal) require('kernel_lsp').on_exit(code, signal) end,
}
