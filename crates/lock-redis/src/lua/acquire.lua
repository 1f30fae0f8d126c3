-- Takes the lock for an owner and mints the token of this grant.
-- KEYS: lock, fence. ARGV: owner, ttl in ms, info, ttl of the fence in ms, proposed token or ''.
-- Answers {1, token}, or {0, remaining ttl in ms, type of the key}.
-- Sent again by the same owner it answers the same.

-- Read first: a fence of another type fails here, before anything is written.
local last, minted_for = unpack(redis.call('HMGET', KEYS[2], 'token', 'owner'))

local taken = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not taken then
  if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
    return {0, redis.call('PTTL', KEYS[1]), redis.call('TYPE', KEYS[1]).ok}
  end
  if minted_for == ARGV[1] then
    return {1, last}
  end
end

local now = redis.call('TIME')
local micros = now[1] * 1000000 + now[2]
local token = tonumber(ARGV[5]) or micros
if last and token <= tonumber(last) then
  token = tonumber(last) + 1
end
-- A double is exact up to 2^53, which as microseconds is the year 2255.
local text = string.format('%.0f', token)
redis.call('HSET', KEYS[2], 'token', text, 'owner', ARGV[1], 'info', ARGV[3], 'since', string.format('%.0f', micros))
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {1, text}
