-- A lock that the owner has already: by a grant that it now confirms, or by plain commands, whose token was not beyond the last
-- one. Not the clock: the next token that this client proposes may be a little below it, and would need a script again.
if is_ours then
  -- See mint.lua.
  redis.pcall('ZREM', KEYS[2], '')
  local token = mint_next(ARGV[6] or WEEK)
  if not token.err then
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. ' ' .. micros .. ' ' .. ARGV[3], 'PX', ARGV[2])
    notify_first(ARGV[2])
  end
  return token
end
