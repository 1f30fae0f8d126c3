-- Passes the lock on from one owner to another of the same process.
-- KEYS: lock, fence. ARGV: owner, next owner, ttl in ms, info, ttl of the fence in ms unless it is a week.
-- Answers {1, token}, or {0} when the lock was not the owner's.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return {0}
end
local token = mint(ARGV[2], ARGV[4], ARGV[5] or '604800000')
if token.err then
  return token
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {1, token}
