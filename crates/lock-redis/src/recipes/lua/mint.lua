-- When its memory is full, Redis refuses SET, ZADD and RPUSH, but not after another write of the same script. So what keeps,
-- frees, hands over, moves or waits for a lock begins with a write that needs no memory: if it has no other, with a ZREM that
-- removes nothing. What acquires a free lock does not.

-- The last token is the score of a member of a sorted set, which plain commands can raise, too.

-- A grant reserves a block of tokens for its process (TokenBlock in lock-core). Its first one, a multiple, stands for all.
local function block_of(number)
  return string.format('%.0f', number - number % BLOCK)
end

local function too_large()
  return redis.error_reply('ERR a clock or a token is centuries ahead: no token is larger than '
    .. string.format('%.0f', LARGEST_TOKEN))
end

-- Keeps the last token until the clock is beyond it, and then for its ttl in ms; for as long as it is `left` at least.
local function keep(token, fence_ttl, left)
  local ahead = math.max(0, (token - micros) / 1000)
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', math.max(fence_ttl + ahead, left or 0)))
end

-- The block after the last token, or an error.
local function mint_next(fence_ttl)
  local last = redis.pcall('ZSCORE', KEYS[2], 'last')
  if type(last) == 'table' then
    return last
  end
  local token = block_of(last and last + BLOCK or micros)
  if tonumber(token) > LARGEST_TOKEN then
    return too_large()
  end
  redis.call('ZADD', KEYS[2], token, 'last')
  keep(token, fence_ttl)
  return token
end

-- Mints the token of a grant: the clock's block if that is beyond the last token, else the next one. Returns the token or an
-- error.
local function mint(fence_ttl)
  local token = block_of(micros)
  local raised = redis.pcall('ZADD', KEYS[2], 'GT', 'CH', token, 'last')
  if raised == 1 then
    redis.call('PEXPIRE', KEYS[2], fence_ttl)
    return token
  end
  return raised == 0 and mint_next(fence_ttl) or raised
end
