-- Gives back the lock.
-- KEYS: lock, fence. ARGV: owner.
-- Answers 1 when it was the owner's until now, else 0.
local held = holds(ARGV[1])
if not held then
  return 0
end
forget(held)
redis.call('DEL', KEYS[1])
return 1
