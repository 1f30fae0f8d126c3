-- The last token is the score of a member of a sorted set, which plain commands can raise, too. Scores are exact up to 2^53.
local EXACT = 9007199254740991

local function too_large()
  return redis.error_reply('ERR a clock or a token is centuries ahead: no token is larger than ' .. EXACT)
end

-- Keeps the last token until the clock is beyond it, and then for its ttl in ms.
local function keep(token, fence_ttl)
  local ahead = math.max(0, (token - micros) / 1000)
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', fence_ttl + ahead))
end

-- The last token plus one, or an error.
local function mint_next(fence_ttl)
  local last = redis.pcall('ZSCORE', KEYS[2], 'last')
  if type(last) == 'table' then
    return last
  end
  local token = last and string.format('%.0f', math.floor(last) + 1) or micros
  if tonumber(token) > EXACT then
    return too_large()
  end
  redis.call('ZADD', KEYS[2], token, 'last')
  keep(token, fence_ttl)
  return token
end

-- Mints the token of a grant: the clock if that is beyond the last token, else the last one plus one. Returns the token or an
-- error.
local function mint(fence_ttl)
  local raised = redis.pcall('ZADD', KEYS[2], 'GT', 'CH', micros, 'last')
  if raised == 1 then
    redis.call('PEXPIRE', KEYS[2], fence_ttl)
    return micros
  end
  return raised == 0 and mint_next(fence_ttl) or raised
end
