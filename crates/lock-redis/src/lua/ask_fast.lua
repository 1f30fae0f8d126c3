-- The usual case, before anything else: a lock that is free, and nobody waits.
if ARGV[5] == 'x' and redis.call('EXISTS', KEYS[3]) == 0
    and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local token = mint(ARGV[1], ARGV[3], ARGV[4])
  if token.err then
    redis.call('DEL', KEYS[1])
    return token
  end
  return {1, token}
end
