-- :KernelLsp NAME. What can be done at a place is asked of the server as code actions; nothing is decided here.
local kernel_lsp = require('kernel_lsp')
local notify, request = kernel_lsp.notify, kernel_lsp.request
local M = {}

local function with_client(act)
  local client = kernel_lsp.client(0)
  if not client then
    return notify('no server for this buffer: open a Python file, or ask :KernelLsp doctor', vim.log.levels.WARN)
  end
  act(client)
end

function M.execute(client, command, arguments, on_reply)
  local known = (client.server_capabilities.executeCommandProvider or {}).commands or {}
  if not vim.tbl_contains(known, command) then
    return notify('this server does not know ' .. command .. ': ' .. kernel_lsp.installing(), vim.log.levels.WARN)
  end
  request(client, 'workspace/executeCommand', { command = command, arguments = { arguments } }, on_reply or function() end)
end

-- Calls act(action) with a code action at the cursor that runs one of these commands; asks where there are several.
local function choose(client, commands, none, act)
  local params = vim.lsp.util.make_range_params(0, client.offset_encoding)
  params.context = { diagnostics = {}, triggerKind = 1 }
  request(client, 'textDocument/codeAction', params, function(found)
    local mine = vim.tbl_filter(function(action)
      return type(action.command) == 'table' and vim.tbl_contains(commands, action.command.command)
    end, found or {})
    if #mine == 0 then
      return notify(none)
    elseif #mine == 1 then
      return act(mine[1])
    end
    local options = { prompt = 'kernel-lsp:', format_item = function(action) return action.title end }
    vim.ui.select(mine, options, function(chosen) return chosen and act(chosen) end)
  end)
end

local function at_cursor(command, none)
  return function()
    with_client(function(client)
      choose(client, { command }, none, function(action)
        M.execute(client, command, action.command.arguments[1], function() notify(action.title) end)
      end)
    end)
  end
end

-- A Markdown document in a split, unless the client has opened it for the server.
local function show(client, found)
  local window = client.config.capabilities.window or {}
  if window.showDocument and window.showDocument.support then
    return
  end
  vim.cmd('new')
  vim.bo.buftype, vim.bo.bufhidden, vim.bo.swapfile = 'nofile', 'wipe', false
  vim.api.nvim_buf_set_lines(0, 0, -1, false, vim.split(found.report, '\n'))
  vim.bo.filetype, vim.bo.modifiable = 'markdown', false
end

local function evidence()
  with_client(function(client)
    choose(client, { 'kernel-lsp.showEvidence' }, 'no rewrite is offered here', function(action)
      M.execute(client, 'kernel-lsp.showEvidence', action.command.arguments[1], function(found) show(client, found) end)
    end)
  end)
end

local function rewrite()
  with_client(function(client)
    local none = 'no verified rewrite is offered here; :KernelLsp optimize measures this target'
    choose(client, { 'kernel-lsp.chosen', 'kernel-lsp.apply' }, none, function(action)
      require('kernel_lsp.diff').offer(client, action)
    end)
  end)
end

local function program(doing)
  return function()
    with_client(function(client) require('kernel_lsp.programs').run(client, doing) end)
  end
end

local function cancel()
  with_client(function(client)
    M.execute(client, 'kernel-lsp.cancel', { uri = vim.uri_from_bufnr(0) }, function(reply)
      notify(('%d stopped'):format(reply.cancelled))
    end)
  end)
end

local function status()
  with_client(function(client)
    M.execute(client, 'kernel-lsp.showStatus', { page = false }, function(reply)
      notify(table.concat(reply.lines, '\n'))
    end)
  end)
end

-- `kernel-lsp doctor` of the same program as the server, in a buffer.
local function doctor()
  local client = kernel_lsp.client(0)
  local command = vim.list_slice((client and client.config or kernel_lsp.config()).cmd, 1)
  if command[#command] == 'serve' then
    table.remove(command)
  end
  table.insert(command, 'doctor')
  if vim.fn.executable(command[1]) == 0 then
    return notify(command[1] .. ' is not installed: ' .. kernel_lsp.installing(), vim.log.levels.WARN)
  end
  local folder = client and client.config.root_dir or vim.fn.getcwd()
  vim.cmd('new')
  vim.bo.buftype, vim.bo.bufhidden, vim.bo.swapfile = 'nofile', 'wipe', false
  local buffer = vim.api.nvim_get_current_buf()
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, { table.concat(command, ' ') .. ' …' })
  local function on_output(_, lines)
    if vim.api.nvim_buf_is_valid(buffer) and #lines > 1 then
      vim.api.nvim_buf_set_lines(buffer, 0, -1, false, lines)
    end
  end
  vim.fn.jobstart(command, { cwd = folder, stdout_buffered = true, on_stdout = on_output })
end

local COMMANDS = {
  rewrite = rewrite,
  optimize = at_cursor('kernel-lsp.optimize', 'nothing to measure here, or a rewrite is offered already'),
  search = at_cursor('kernel-lsp.searchDeeper', 'no target here, or its search runs already'),
  evidence = evidence,
  dismiss = at_cursor('kernel-lsp.dismiss', 'no hint here'),
  record = program('record'),
  program = program('optimize'),
  cancel = cancel,
  status = status,
  restart = kernel_lsp.restart,
  doctor = doctor,
  log = function() vim.cmd('split ' .. vim.fn.fnameescape(vim.lsp.get_log_path())) end,
}

function M.run(name)
  local command = COMMANDS[vim.trim(name)]
  if not command then
    return notify(('no command %s; there are: %s'):format(name, table.concat(M.complete(''), ', ')), vim.log.levels.WARN)
  end
  command()
end

function M.complete(typed)
  local names = vim.tbl_filter(function(name) return vim.startswith(name, typed) end, vim.tbl_keys(COMMANDS))
  table.sort(names)
  return names
end

return M
