-- The common case of a confirmation first: the owner still has the grant that it was notified of.
if is_ours then
  -- See mint.lua.
  redis.pcall('ZREM', KEYS[2], '')
  local token = mint_next(ARGV[6] or '604800000')
  if not token.err then
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. ' ' .. micros .. ' ' .. ARGV[3], 'PX', ARGV[2])
    notify_first(ARGV[2])
  end
  return token
end
