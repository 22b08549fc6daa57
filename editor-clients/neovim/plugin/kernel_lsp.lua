-- The command :KernelLsp. Everything else is loaded when it is used.
if vim.g.loaded_kernel_lsp then
  return
end
vim.g.loaded_kernel_lsp = true

vim.api.nvim_create_user_command('KernelLsp', function(given) require('kernel_lsp.commands').run(given.args) end, {
  nargs = 1,
  complete = function(typed) return require('kernel_lsp.commands').complete(typed) end,
  desc = 'kernel-lsp: rewrite, optimize, search, evidence, dismiss, cancel, status, restart, doctor, log',
})
