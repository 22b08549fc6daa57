-- :checkhealth kernel_lsp. What `kernel-lsp doctor` finds is shown as it is.
local M = {}

local health = vim.health or require('health')
local start, ok = health.start or health.report_start, health.ok or health.report_ok
local warn, err = health.warn or health.report_warn, health.error or health.report_error

function M.check()
  start('kernel-lsp')
  local cmd = require('kernel_lsp').config().cmd
  if vim.fn.executable(cmd[1]) == 0 then
    return err(cmd[1] .. ' is not installed', { require('kernel_lsp').installing(), ':help kernel-lsp-install' })
  end
  ok(table.concat(cmd, ' '))
  local client = require('kernel_lsp').client(0)
  if client then
    ok('attached to this buffer, root ' .. tostring(client.config.root_dir))
  else
    warn('not attached to this buffer', { 'open a Python file, then :checkhealth kernel_lsp' })
  end
  local command = vim.list_extend(vim.tbl_filter(function(word) return word ~= 'serve' end, cmd), { 'doctor', '--json' })
  local read, found = pcall(vim.fn.json_decode, vim.fn.system(command))
  if not read then
    return err('kernel-lsp doctor failed', { table.concat(command, ' ') })
  end
  for _, item in ipairs(found.findings) do
    local text = ('%s: %s'):format(item.part, item.found)
    if item.ok then
      ok(text)
    else
      warn(text, item.remedy ~= vim.NIL and { item.remedy } or nil)
    end
  end
end

return M
