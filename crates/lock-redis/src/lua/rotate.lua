-- The rare case: the clock is not beyond the last token.
token = mint(ARGV[2], ARGV[4], fence_ttl)
if not token.err then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return token
