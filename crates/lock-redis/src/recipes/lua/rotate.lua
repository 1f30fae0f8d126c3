-- Hands the lock over from one owner to another one of the same process.
-- KEYS: lock, last token. ARGV: owner, next owner, ttl in ms, info, ttl of the last token in ms unless it is a week.
-- Returns the token, or 0 if the owner did not hold the lock.
if not is_ours then
  return 0
end
-- See mint.lua.
redis.pcall('ZREM', KEYS[2], '')
local token = mint(ARGV[5] or WEEK)
if not token.err then
  redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. token .. ' ' .. micros .. ' ' .. ARGV[4], 'PX', ARGV[3])
end
return token
