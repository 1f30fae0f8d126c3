-- Lets the lock end at another time. Never takes it.
-- KEYS: lock, fence. ARGV: owner, -, ttl of the fence in ms, value, when that was sent.
-- Answers 1 when it is the owner's, else 0.
local held = holds(ARGV[1])
if not held then
  return 0
end
write(held, ARGV[4], ARGV[5], ARGV[3])
return 1
