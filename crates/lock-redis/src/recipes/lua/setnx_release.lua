-- Releases the lock.
-- KEYS: lock, last token, fence. ARGV: owner.
-- Returns 1 if the owner held it, else 0.
local held = holds(ARGV[1])
if not held then
  return 0
end
redis.call('DEL', KEYS[1])
forget(held)
return 1
