-- Sets another end of the lock. Never acquires it.
-- KEYS: lock, last token, fence. ARGV: owner, -, ttl of the fence in ms, value, its time of sending, and, if a longer lease is to be
-- shortened, something. Without that a longer one stays.
-- Returns 1 if the owner holds the lock, else 0. If it holds a longer one, minus the time at which that was sent: if the wall clock of the
-- owner was set back since, the value is longer by that clock alone.
local held = holds(ARGV[1])
if not held then
  return 0
end
if not ARGV[6] and tonumber(ARGV[5]) >= tonumber(held.sent) and tonumber(ARGV[4]) < tonumber(held.value) then
  return -tonumber(held.sent)
end
write(held, ARGV[4], ARGV[5], ARGV[3])
return 1
