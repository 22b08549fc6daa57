-- Programs of the workspace, run in a terminal buffer: recorded, or optimized as a whole. Which there are and with what
-- line each is run, the server says; it runs none, and neither does this unchosen.
local kernel_lsp = require('kernel_lsp')
local M = {}

local PROMPTS = { record = 'Record a run of:', optimize = 'Optimize the program:' }
local OTHER = 'Another program…'

local function terminal(line, folder)
  vim.cmd('silent! wall') -- what is run is what is seen
  vim.cmd('botright 15new')
  local command = vim.fn.has('win32') == 1 and line or { 'sh', '-c', line }
  if vim.fn.has('nvim-0.11') == 1 then
    vim.fn.jobstart(command, { cwd = folder, term = true })
  else
    vim.fn.termopen(command, { cwd = folder })
  end
  vim.cmd('normal! G') -- the output is followed
end

local function type_one(found, doing)
  vim.ui.input({ prompt = 'As in a shell: ', default = found.python .. ' train.py' }, function(typed)
    if typed and vim.trim(typed) ~= '' then
      terminal(found[doing] .. ' ' .. typed, found.folder)
    end
  end)
end

local function title(program)
  return program.kind and ('%s (%s)'):format(program.name, program.kind) or program.name
end

-- doing: record or optimize.
function M.run(client, doing)
  local asked = { uri = vim.uri_from_bufnr(0) }
  require('kernel_lsp.commands').execute(client, 'kernel-lsp.entryPoints', asked, function(found)
    for _, problem in ipairs(found.problems) do
      kernel_lsp.notify(problem)
    end
    local programs = vim.list_extend(vim.list_slice(found.points), { { name = OTHER } })
    vim.ui.select(programs, { prompt = PROMPTS[doing], format_item = title }, function(chosen)
      if chosen and chosen.kind then
        terminal(chosen[doing], chosen.path)
      elseif chosen then
        type_one(found, doing)
      end
    end)
  end)
end

return M
