-- The usual case, before anything else: nobody else comes first.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return {0}
end
if ARGV[6] == '' or redis.call('EXISTS', KEYS[3]) == 0 then
  local token = mint(ARGV[2], ARGV[4], ARGV[5])
  if token.err then
    return token
  end
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return {1, token}
end
