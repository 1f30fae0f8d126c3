-- Lets the lock, or the owner's share of it, end later. Never takes it.
-- KEYS: lock, fence, and the holders for one who may share it. ARGV: owner, ttl in ms, ttl of the fence in ms unless it
-- is a week.
-- Answers 1 when it is the owner's, else 0.
if not holds(ARGV[1]) then
  return 0
end
local lasting, left = ARGV[3] or '604800000', redis.call('PTTL', KEYS[2])
if left ~= -1 and left < tonumber(lasting) then
  redis.call('PEXPIRE', KEYS[2], lasting)
end
extend(ARGV[1], ARGV[2])
return 1
