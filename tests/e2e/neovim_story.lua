-- The story of a rewrite in Neovim with our plugin, as a person would live it. One line per step on stdout; the last
-- is DONE or a reason. Started by test_neovim.py and scripts/drive_editor.py with the file already open.
-- KL_AFTER: where to write the text with the rewrite in place. KL_SHORT: only hint, diff, apply and undo.
local patience_ms = tonumber(os.getenv('KL_PATIENCE_MS') or '90000')
local before, said = nil, {}

local function say(text)
  io.stdout:write(text .. '\n')
  io.stdout:flush()
end

local function stop(reason)
  say(reason)
  vim.lsp.stop_client(vim.lsp.get_active_clients())
  vim.wait(3000, function() return #vim.lsp.get_active_clients() == 0 end)
  vim.cmd('qa!')
end

local function must(condition, reason)
  if not vim.wait(patience_ms, condition, 50) then
    stop(reason .. ' ' .. vim.inspect(said))
    error(reason)
  end
end

local function text()
  return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\n')
end

local function hint()
  for _, found in ipairs(vim.diagnostic.get(0)) do
    if string.find(found.message, 'verified', 1, true) then
      return found
    end
  end
end

local function told(words)
  for _, line in ipairs(said) do
    if string.find(line, words, 1, true) then
      return line
    end
  end
end

-- What needs a person: answers on the command line, choices from menus, messages that are read.
vim.fn.inputlist = function(lines)
  say('ASKED ' .. lines[1])
  return 1
end
vim.notify = function(line) table.insert(said, line) end
local wanted, offered = 'Rewrite ', {}
vim.ui.select = function(items, options, on_choice)
  offered = items
  for index, item in ipairs(items) do
    local title = type(item) == 'string' and item or (item[2] or item.action or item).title
    if vim.startswith(title, wanted) then
      return on_choice(item, index)
    end
  end
  on_choice(nil, nil)
end

local function kernel_lsp(name)
  vim.cmd('KernelLsp ' .. name)
end

local function to_hint()
  vim.api.nvim_win_set_cursor(0, { hint().lnum + 1, hint().col })
end

local function undone(step)
  vim.cmd('silent undo')
  must(function() return text() == before end, 'UNDO LEFT A DIFFERENT TEXT')
  must(hint, 'NO HINT AFTER UNDO')
  vim.wait(1500) -- a text that stays for a second is what the user meant
  say(step)
end

local function rewrites()
  say('HINT ' .. hint().message)
  to_hint()
  local right
  vim.ui.select, right = function(items, options, on_choice)
    if #vim.api.nvim_list_tabpages() ~= 2 or not vim.wo.diff then
      return stop('NO DIFF')
    end
    right = text()
    say('DIFF ' .. options.prompt)
    on_choice(items[1], 1)
  end, vim.ui.select
  local menu = right
  kernel_lsp('rewrite')
  must(function() return #vim.api.nvim_list_tabpages() == 1 and text() ~= before end, 'NOT APPLIED')
  vim.ui.select = menu
  if text() ~= right then
    return stop('WHAT WENT IN IS NOT WHAT THE DIFF SHOWED')
  end
  say('APPLIED')
  if os.getenv('KL_AFTER') then
    vim.fn.writefile(vim.api.nvim_buf_get_lines(0, 0, -1, false), os.getenv('KL_AFTER'))
  end
  must(function() return not hint() end, 'THE HINT STAYED')
  vim.wait(1500)
  undone('UNDONE')
end

local function reads()
  to_hint()
  vim.lsp.buf.hover()
  local window
  must(function()
    window = vim.tbl_filter(function(w) return vim.api.nvim_win_get_config(w).relative ~= '' end, vim.api.nvim_list_wins())[1]
    return window
  end, 'NO HOVER')
  say('HOVER ' .. vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(window), 0, 1, false)[1])
  vim.api.nvim_win_close(window, true)
  kernel_lsp('evidence')
  must(function() return vim.bo.filetype == 'markdown' and string.find(text(), '## Diff', 1, true) end, 'NO EVIDENCE')
  say('EVIDENCE ' .. vim.api.nvim_buf_get_lines(0, 0, 1, false)[1])
  vim.cmd('close')
  vim.lsp.codelens.refresh()
  must(function() return #vim.lsp.codelens.get(0) > 0 end, 'NO LENS')
  say('LENS ' .. vim.lsp.codelens.get(0)[1].command.title)
end

local function own_menu()
  to_hint()
  wanted = 'Rewrite '
  vim.lsp.buf.code_action()
  must(function() return text() ~= before end, 'NOT APPLIED BY THE MENU')
  say('MENU')
  vim.wait(1500)
  undone('UNDONE AGAIN')
end

local function restarts()
  local first = require('kernel_lsp').client(0).id
  kernel_lsp('restart')
  must(function() return require('kernel_lsp').client(0) and require('kernel_lsp').client(0).id ~= first end, 'NOT RESTARTED')
  must(hint, 'NO HINT AFTER THE RESTART')
  say('RESTARTED')
end

local function searches()
  to_hint()
  kernel_lsp('search')
  must(function() return string.find(require('kernel_lsp').status(), 'searching Model', 1, true) end, 'NO STATUS')
  say('SEARCH ' .. require('kernel_lsp').status())
  kernel_lsp('cancel')
  must(function() return told('1 stopped') and require('kernel_lsp').status() == '' end, 'NOT CANCELLED')
  kernel_lsp('status')
  must(function() return told('nothing is running') end, 'STILL RUNNING')
  say('CANCELLED ' .. told('nothing is running'))
end

local function dismisses()
  to_hint()
  wanted = 'Dismiss '
  kernel_lsp('dismiss')
  must(function() return not hint() end, 'NOT DISMISSED')
  say('DISMISSED')
  kernel_lsp('rewrite')
  must(function() return told('no verified rewrite is offered here') end, 'OFFERED ALTHOUGH DISMISSED')
end

local function asks_doctor()
  kernel_lsp('doctor')
  must(function() return string.find(text(), 'interpreter', 1, true) end, 'NO DOCTOR')
  say('DOCTOR')
  vim.cmd('close')
  vim.cmd('checkhealth kernel_lsp')
  must(function() return string.find(text(), 'attached', 1, true) end, 'NO CHECKHEALTH')
  say('HEALTH')
  vim.cmd('bwipeout!')
end

local function survives_a_crash()
  local at = assert(io.popen('pgrep -P ' .. vim.fn.getpid() .. ' -f "kernel-lsp serve"'))
  local pid = at:read('*n')
  at:close()
  vim.loop.kill(pid, 'sigkill')
  must(function() return told(':KernelLsp restart starts it again') end, 'A CRASH WITHOUT A WORD')
  kernel_lsp('restart')
  must(function() return require('kernel_lsp').client(0) end, 'NOT STARTED AFTER A CRASH')
  say('CRASH ' .. told(':KernelLsp restart starts it again'))
end

before = text()
if os.getenv('KL_SHORT') and not vim.wait(60000, hint, 200) then
  -- Unasked, nothing is measured while other work takes the cores; what somebody asks for is.
  vim.api.nvim_win_set_cursor(0, { vim.fn.search('^class Model', 'n'), 6 })
  kernel_lsp('optimize')
  say('ASKED FOR')
end
must(hint, 'NO HINT:')
rewrites()
if not os.getenv('KL_SHORT') then
  reads()
  own_menu()
  restarts()
  searches()
  dismisses()
  asks_doctor()
  survives_a_crash()
end
stop('DONE')
