-- Releases an exclusive lock that nobody waits for: the common case, in a script of its own, as each line costs.
-- KEYS: lock, queue. ARGV: owner.
-- Returns 1 if the owner held the lock; else 0, and release.lua has to follow.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 1, 32) == ARGV[1] and redis.call('EXISTS', KEYS[2]) == 0 then
  return redis.call('DEL', KEYS[1])
end
return 0
