-- The command :KernelLsp, and two names for programs. Everything else is loaded when it is used.
if vim.g.loaded_kernel_lsp then
  return
end
vim.g.loaded_kernel_lsp = true

vim.api.nvim_create_user_command('KernelLsp', function(given) require('kernel_lsp.commands').run(given.args) end, {
  nargs = 1,
  complete = function(typed) return require('kernel_lsp.commands').complete(typed) end,
  desc = 'kernel-lsp: rewrite, optimize, search, evidence, dismiss, record, program, cancel, status, restart, doctor, log',
})

for name, command in pairs({ KernelLspRecord = 'record', KernelLspOptimizeProgram = 'program' }) do
  vim.api.nvim_create_user_command(name, function() require('kernel_lsp.commands').run(command) end, {
    desc = 'the same as :KernelLsp ' .. command,
  })
end

-- A lens or an action that asks for a recorded run: a terminal is ours to open.
vim.lsp.commands['kernel-lsp.recordRun'] = function(_, context)
  require('kernel_lsp.programs').run(vim.lsp.get_client_by_id(context.client_id), 'record')
end
