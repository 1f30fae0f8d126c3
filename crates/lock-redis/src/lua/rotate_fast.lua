-- Passes the lock on from one owner to another of the same process.
-- KEYS: lock, fence. ARGV: owner, next owner, ttl in ms, info, ttl of the fence in ms unless it is a week.
-- Answers the token, or 0 when the lock was not the owner's.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local lasting = ARGV[5] or '604800000'
local token = mint_by_clock(ARGV[2], ARGV[4], lasting)
if token then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return token
end
