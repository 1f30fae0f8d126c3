-- Extends the lock, or the owner's share of it. Never acquires it.
-- KEYS: lock, last token, and holders if the owner may share it. ARGV: owner, ttl in ms, ttl of the last token in ms unless it is a
-- week, -, and, if a longer ttl is to be shortened, something. Without that a request which is executed late shortens nothing.
-- Returns 1 if the owner holds the lock, else 0.
if not holds(ARGV[1]) then
  return 0
end
local fence_ttl = ARGV[3] or WEEK
if redis.call('PTTL', KEYS[2]) < fence_ttl / 2 then
  redis.call('PEXPIRE', KEYS[2], fence_ttl)
end
local left = is_shared() and redis.call('ZSCORE', holders, ARGV[1]) - now or redis.call('PTTL', KEYS[1])
if (ARGV[5] or '') ~= '' or left <= tonumber(ARGV[2]) then
  extend(ARGV[1], ARGV[2])
end
return 1
