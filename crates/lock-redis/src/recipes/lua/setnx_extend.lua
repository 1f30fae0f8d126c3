-- Sets another end of the lock. Never acquires it.
-- KEYS: lock, last token, fence. ARGV: owner, -, ttl of the fence in ms, value, its time of sending.
-- Returns 1 if the owner holds the lock, else 0.
local held = holds(ARGV[1])
if not held then
  return 0
end
write(held, ARGV[4], ARGV[5], ARGV[3])
return 1
