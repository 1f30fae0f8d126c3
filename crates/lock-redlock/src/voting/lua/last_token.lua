-- The last token, false without one, or an error if the key has another type.
local function last_token()
  local last = redis.pcall('ZSCORE', KEYS[2], 'last')
  if type(last) == 'string' and not string.match(last, '^%d+$') then
    return redis.error_reply('ERR the last token is no number: ' .. last)
  end
  return last
end

-- A grant reserves a block of tokens for its process (TokenBlock in lock-core). Its first one, a multiple, stands for all.
local function block_of(number)
  return string.format('%.0f', number - number % BLOCK)
end

-- The token of the next grant, or an error: the proposed one if it is larger than the last one, else the block after that.
local function next_token(proposed)
  local last = last_token()
  if type(last) == 'string' and not is_larger(proposed, last) then
    return block_of(last + BLOCK)
  end
  return type(last) == 'table' and last or proposed
end

-- Writes a token larger than all earlier ones, and its ttl in ms. Returns nil or an error.
local function note(token, fence_ttl)
  if (tonumber(token) or 0) > LARGEST_TOKEN then
    return redis.error_reply('ERR the clock of a client or a server is centuries ahead: no token is larger than '
      .. string.format('%.0f', LARGEST_TOKEN))
  end
  local noted = redis.pcall('ZADD', KEYS[2], 'GT', token, 'last')
  noted = type(noted) == 'number' and redis.pcall('PEXPIRE', KEYS[2], fence_ttl) or noted
  return type(noted) == 'table' and noted or nil
end
