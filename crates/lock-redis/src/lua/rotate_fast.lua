-- Hands the lock over from one owner to another one of the same process.
-- KEYS: lock, fence. ARGV: owner, next owner, ttl in ms, info, ttl of the fence in ms unless it is a week.
-- Returns the token, or 0 if the owner did not hold the lock.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local fence_ttl = ARGV[5] or '604800000'
local token = mint_by_clock(ARGV[2], ARGV[4], fence_ttl)
if token then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return token
end
