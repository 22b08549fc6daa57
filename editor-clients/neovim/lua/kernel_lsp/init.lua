-- Starting, watching and restarting the server, and its status for a statusline. The commands are in commands.lua.
-- For Neovim 0.7 to 0.10, which have no vim.lsp.enable; newer ones need none of setup().
local M = {}

local clients = {} -- root folder -> id, where vim.lsp.start does not do this for us (before 0.8)
local used -- the configuration of the last start, to start again after a crash
local status = { health = 'ok', message = nil }
local told = {}
local restarting = false

function M.notify(text, level)
  vim.schedule(function() vim.notify('kernel-lsp: ' .. text, level or vim.log.levels.INFO) end)
end

-- How the server is installed: from the repository that this file lies in, where it lies in one.
function M.installing()
  local clone = vim.fn.fnamemodify(debug.getinfo(1, 'S').source:sub(2), ':p:h:h:h:h:h')
  local found = vim.fn.filereadable(clone .. '/pyproject.toml') == 1
  return 'pip install ' .. (found and clone or 'CLONE-OF-KERNEL-LSP')
end

local function once(text)
  if not told[text] then
    told[text] = true
    M.notify(text, vim.log.levels.WARN)
  end
end

-- The client of a buffer (0: this one), or nil.
function M.client(buffer)
  buffer = (buffer == nil or buffer == 0) and vim.api.nvim_get_current_buf() or buffer
  for _, client in pairs((vim.lsp.get_clients or vim.lsp.get_active_clients)()) do
    if client.name == 'kernel_lsp' and vim.lsp.buf_is_attached(buffer, client.id) then
      return client
    end
  end
end

function M.request(client, method, params, on_reply)
  local function handler(err, result)
    if err then
      return M.notify(err.message or vim.inspect(err), vim.log.levels.WARN)
    end
    on_reply(result)
  end
  if vim.fn.has('nvim-0.11') == 1 then
    return client:request(method, params, handler, vim.api.nvim_get_current_buf())
  end
  return client.request(method, params, handler, vim.api.nvim_get_current_buf())
end

-- lsp/kernel_lsp.lua of this plugin, with what the user wants otherwise.
function M.config(options)
  local path = vim.api.nvim_get_runtime_file('lsp/kernel_lsp.lua', false)[1]
  return vim.tbl_deep_extend('force', dofile(path), { name = 'kernel_lsp' }, options or {})
end

local function root_of(buffer, markers)
  local folder = vim.fn.fnamemodify(vim.api.nvim_buf_get_name(buffer), ':p:h')
  if vim.fs and vim.fs.root then
    return vim.fs.root(buffer, markers) or folder
  end
  local at = folder
  while true do
    for _, marker in ipairs(markers) do
      if vim.fn.filereadable(at .. '/' .. marker) == 1 or vim.fn.isdirectory(at .. '/' .. marker) == 1 then
        return at
      end
    end
    local above = vim.fn.fnamemodify(at, ':h')
    if above == at then
      return folder
    end
    at = above
  end
end

local function attach(config, buffer)
  if vim.fn.executable(config.cmd[1]) == 0 then
    return once(config.cmd[1] .. ' is not installed: ' .. M.installing() .. ', or name it in cmd (:help kernel-lsp-install)')
  end
  if vim.lsp.start then
    return vim.lsp.start(config, { bufnr = buffer })
  end
  local id = clients[config.root_dir]
  if not id or not vim.lsp.get_client_by_id(id) then
    id = vim.lsp.start_client(config)
    clients[config.root_dir] = id
  end
  if id then
    vim.lsp.buf_attach_client(buffer, id)
  end
end

function M.start(buffer, config)
  if vim.bo[buffer].buftype == '' and vim.api.nvim_buf_get_name(buffer) ~= '' then
    used = vim.tbl_extend('keep', { root_dir = config.root_dir or root_of(buffer, config.root_markers) }, config)
    attach(used, buffer)
  end
end

-- Start the server for every Python file; options: as in lsp/kernel_lsp.lua.
function M.setup(options)
  if vim.lsp.enable and vim.lsp.config then
    vim.lsp.config('kernel_lsp', options or {})
    return vim.lsp.enable('kernel_lsp')
  end
  local config = M.config(options)
  local group = vim.api.nvim_create_augroup('kernel_lsp', { clear = true })
  vim.api.nvim_create_autocmd('FileType', {
    group = group,
    pattern = config.filetypes,
    callback = function(event) M.start(event.buf, config) end,
  })
end

-- End the server and start it again for the same buffers. Also after a crash.
function M.restart()
  local client = M.client(0)
  local config = client and client.config or used or (vim.lsp.config and vim.lsp.config.kernel_lsp) or M.config()
  local buffers = {}
  for _, buffer in ipairs(vim.api.nvim_list_bufs()) do
    local attached = client and vim.lsp.buf_is_attached(buffer, client.id)
    if attached or (not client and vim.tbl_contains(config.filetypes, vim.bo[buffer].filetype)) then
      table.insert(buffers, buffer)
    end
  end
  if client then
    restarting = true
    vim.lsp.stop_client(client.id)
    if not vim.wait(5000, function() return vim.lsp.get_client_by_id(client.id) == nil end, 50) then
      vim.lsp.stop_client(client.id, true)
    end
    restarting = false
  end
  status, clients, told = { health = 'ok' }, {}, {}
  for _, buffer in ipairs(buffers) do
    M.start(buffer, config)
  end
end

function M.on_status(params)
  status = params
  vim.schedule(function() vim.cmd('redrawstatus') end)
end

-- For a statusline: '' when there is nothing to say.
function M.status()
  if not status.message or status.message == vim.NIL then
    return ''
  end
  return (status.health == 'ok' and 'kernel-lsp: ' or 'kernel-lsp! ') .. status.message
end

function M.on_exit(code, signal)
  status = { health = 'ok' }
  local quitting = vim.v.exiting ~= vim.NIL and vim.v.exiting ~= nil
  if (code ~= 0 or signal ~= 0) and not restarting and not quitting then
    local how = signal ~= 0 and 'signal ' .. signal or 'exit code ' .. code
    M.notify(('the server ended (%s); :KernelLsp log says why, :KernelLsp restart starts it again'):format(how), vim.log.levels.WARN)
  end
end

return M
