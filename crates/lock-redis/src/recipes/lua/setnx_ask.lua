-- Acquires the lock for an owner if it is free, or over by the caller's clock.
-- KEYS: lock, last token, fence, text of a tombstone.
-- ARGV: owner, -, info, -, -, ttl of the fence in ms, value, its time of sending, unit in ms, the time before which a lock
-- has ended.
-- Returns {1, token, server's clock in us}, or {0, ms until the lock has ended, type of the key or tombstone}.
-- Idempotent for an owner, but the value that was sent last counts.
local held = holds(ARGV[1])
if held then
  write(held, ARGV[7], ARGV[8], ARGV[6])
  return {1, held.token, micros}
end

local before = redis.pcall('GET', KEYS[1])
if is_moved(before, ARGV[9]) then
  return {0, redis.call('PTTL', KEYS[1]), tombstone(KEYS[4])}
end
if before and not is_over(before, ARGV[9], ARGV[10]) then
  local time, kind = time_of(before, ARGV[9]), redis.call('TYPE', KEYS[1]).ok
  if time then
    return {0, time - ARGV[10] + 1, kind}
  end
  return {0, redis.call('PTTL', KEYS[1]), kind == 'string' and 'string that is no time in this recipe_unit' or kind}
end

local token = mint(ARGV[6])
if token.err then
  return token
end
local parts = {token, ARGV[1], micros, ARGV[7], ARGV[8], ARGV[3]}
redis.call('SET', KEYS[3], table.concat(parts, ' '), 'PX', ARGV[6])
-- The SETNX or the GETSET of the recipe. Nothing runs between the GET above and this SET, so it cannot overwrite the time
-- of another winner.
redis.call('SET', KEYS[1], ARGV[7])
return {1, token, micros}
