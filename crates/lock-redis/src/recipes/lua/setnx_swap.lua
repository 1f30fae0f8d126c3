-- Replaces the lock of an owner by a tombstone.
-- KEYS: lock, last token, fence, text. ARGV: owner, tombstone, its life in ms, the time of a lock that has moved, unit in ms, clock skew
-- in ms.
-- Returns 1 if the tombstone is there, else 0.
local lock = redis.pcall('GET', KEYS[1])
if is_moved(lock, ARGV[5]) then
  if tombstone(KEYS[4]) ~= ARGV[2] then
    return 0
  end
  -- Written by an earlier sending of this request: its life counts from now on, as the caller takes it.
  redis.call('PEXPIRE', KEYS[4], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return 1
end
local held = holds(ARGV[1])
-- A client that has read a time that is over overwrites whatever is there by then.
if not held or is_over(lock, ARGV[5], string.sub(micros, 1, -4) + ARGV[6]) then
  return 0
end
-- See mint.lua.
redis.pcall('ZREM', KEYS[2], '')
-- The lock last: a text alone does nothing.
redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[3])
forget(held)
redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[3])
return 1
