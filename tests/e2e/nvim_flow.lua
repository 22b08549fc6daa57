-- The main flow in Neovim's built-in client: wait for the verified hint, apply, undo. Prints one line per step.
-- Started by test_main_flow.py and scripts/drive_editor.py; the last line is DONE or a reason. From Neovim 0.7 on.
-- KL_AFTER names a file for the text with the rewrite in place.
local file, python, root = os.getenv('KL_FILE'), os.getenv('KL_PYTHON'), os.getenv('KL_ROOT')
local patience_ms = tonumber(os.getenv('KL_PATIENCE_MS') or '90000')

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

local function text()
  return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\n')
end

vim.ui.select = function(items, options, on_choice)
  for index, item in ipairs(items) do
    local action = item[2] or item.action or item
    if vim.startswith(action.title, 'Rewrite ') and not action.disabled then
      say('CHOSE ' .. action.title)
      return on_choice(item, index)
    end
  end
  on_choice(nil, nil)
end

-- Consent: the built-in client would ask on the command line, which headless Neovim does not have.
local handlers = {
  ['window/showMessageRequest'] = function(_, params)
    say('ASKED ' .. params.message)
    return params.actions[1]
  end,
}

vim.cmd('edit ' .. file)
local before = text()
local client = vim.lsp.start_client({
  name = 'kernel_lsp',
  cmd = { python, '-m', 'kernel_lsp', 'serve' },
  root_dir = root,
  handlers = handlers,
})
vim.bo.filetype = 'python'
vim.lsp.buf_attach_client(0, client)

local hint
local function verified()
  hint = nil
  for _, found in ipairs(vim.diagnostic.get(0)) do
    if string.find(found.message, 'verified', 1, true) then
      hint = found
      return true
    end
  end
end
if not vim.wait(patience_ms, verified, 100) then
  return stop('NO HINT: ' .. vim.inspect(vim.tbl_map(function(d) return d.message end, vim.diagnostic.get(0))))
end
say('HINT ' .. hint.message)

vim.api.nvim_win_set_cursor(0, { hint.lnum + 1, hint.col })
vim.lsp.buf.code_action()
if not vim.wait(10000, function() return text() ~= before end, 50) then
  return stop('NOT APPLIED')
end
say('APPLIED')
if os.getenv('KL_AFTER') then
  vim.fn.writefile(vim.api.nvim_buf_get_lines(0, 0, -1, false), os.getenv('KL_AFTER'))
end
-- The hint goes when the server has seen the new text, and comes back when it has seen the old one again.
vim.wait(10000, function() return not verified() end, 50)
vim.wait(300)

vim.cmd('silent undo')
if text() ~= before then
  return stop('UNDO LEFT A DIFFERENT TEXT')
end
say('UNDONE')
vim.wait(10000, verified, 50)
vim.wait(1000)
stop('DONE')
