-- A rewrite beside the present text, before it goes in. The server checks again when it is applied.
local kernel_lsp = require('kernel_lsp')
local M = {}

local APPLY, EVIDENCE, LATER = 'Apply', 'Show evidence', 'Not now'

local function resolved(client, action, on_edit)
  local data = action.data or action.command.arguments[1]
  local params = { title = action.title, kind = action.kind, data = data }
  kernel_lsp.request(client, 'codeAction/resolve', params, function(full) on_edit(full.edit) end)
end

local function edits_of(edit)
  return edit.documentChanges and edit.documentChanges[1].edits or select(2, next(edit.changes))
end

local function side_by_side(buffer, client, edit)
  vim.cmd('tab split')
  vim.cmd('diffthis')
  vim.cmd('rightbelow vnew')
  vim.bo.buftype, vim.bo.bufhidden, vim.bo.swapfile = 'nofile', 'wipe', false
  local proposed = vim.api.nvim_get_current_buf()
  vim.api.nvim_buf_set_lines(proposed, 0, -1, false, vim.api.nvim_buf_get_lines(buffer, 0, -1, false))
  vim.lsp.util.apply_text_edits(vim.deepcopy(edits_of(edit)), proposed, client.offset_encoding)
  vim.bo.buflisted, vim.bo.modifiable, vim.bo.syntax = false, false, 'python'
  vim.cmd('diffthis')
  return vim.api.nvim_get_current_tabpage()
end

local function close(tab)
  if vim.api.nvim_tabpage_is_valid(tab) then
    vim.api.nvim_set_current_tabpage(tab)
    vim.cmd('diffoff!')
    vim.cmd('tabclose')
  end
end

-- The edit is made anew, on the text as it is now: if the target changed meanwhile, the server refuses and says so.
local function apply(client, action)
  local commands = require('kernel_lsp.commands')
  if action.command.command == 'kernel-lsp.apply' then
    return commands.execute(client, 'kernel-lsp.apply', action.command.arguments[1])
  end
  resolved(client, action, function(edit)
    vim.lsp.util.apply_workspace_edit(edit, client.offset_encoding)
    commands.execute(client, action.command.command, action.command.arguments[1])
  end)
end

function M.offer(client, action)
  local buffer = vim.api.nvim_get_current_buf()
  resolved(client, action, function(edit)
    local tab = side_by_side(buffer, client, edit)
    vim.cmd('redraw')
    vim.ui.select({ APPLY, EVIDENCE, LATER }, { prompt = action.title }, function(chosen)
      close(tab)
      if chosen == APPLY then
        apply(client, action)
      elseif chosen == EVIDENCE then
        require('kernel_lsp.commands').run('evidence')
      end
    end)
  end)
end

return M
