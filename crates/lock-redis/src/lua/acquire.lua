-- Takes the lock for an owner and mints the token of this grant.
-- KEYS: lock, fence. ARGV: owner, ttl in ms, info, ttl of the fence in ms, proposed token or ''.
-- Answers {1, token}, or {0, remaining ttl in ms, type of the key}.
-- Sent again by the same owner it answers the same.
local taken = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not taken then
  if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
    return {0, redis.call('PTTL', KEYS[1]), redis.call('TYPE', KEYS[1]).ok}
  end
  local token, owner = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%x+) ')
  if owner == ARGV[1] then
    return {1, token}
  end
end

local token = mint(ARGV[1], ARGV[3], ARGV[4], ARGV[5] ~= '' and ARGV[5])
if token.err then
  redis.call('DEL', KEYS[1])
  return token
end
return {1, token}
