-- Takes the lock for an owner and mints the token of this grant.
-- KEYS: lock, fence. ARGV: owner, ttl in ms, info, ttl of the fence in ms, proposed token or ''.
-- Answers {1, token}, or {0, remaining ttl in ms, type of the key}.
-- Sent again by the same owner it answers the same.
-- The fence is "token owner since info", where since is the server's clock in us.

-- First, as it is refused where the user has no right to it: then nothing has been written.
local now = redis.call('TIME')
local taken = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not taken then
  if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
    return {0, redis.call('PTTL', KEYS[1]), redis.call('TYPE', KEYS[1]).ok}
  end
  local token, owner = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%x+) ')
  if owner == ARGV[1] then
    return {1, token}
  end
end

local micros = now[1] .. string.sub('00000' .. now[2], -6)
local token = ARGV[5] ~= '' and ARGV[5] or micros
local rest = ' ' .. ARGV[1] .. ' ' .. micros .. ' ' .. ARGV[3]
local before = redis.pcall('SET', KEYS[2], token .. rest, 'PX', ARGV[4], 'GET')
if not before then
  return {1, token}
end
if before.err then
  -- The fence holds something else: nothing has happened.
  redis.call('DEL', KEYS[1])
  return before
end
local last = string.match(before, '^%d+')
if last and not is_larger(token, last) then
  token = successor(last)
  if tonumber(token) - tonumber(micros) > 60000000 then
    -- Far ahead of the clock, which could not carry on from there.
    redis.call('SET', KEYS[2], token .. rest)
  else
    redis.call('SET', KEYS[2], token .. rest, 'PX', ARGV[4])
  end
end
return {1, token}
