-- The common case of a confirmation first: the owner still has the grant that it was notified of.
if value == ARGV[1] then
  local token, owner = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%x+) ')
  if owner == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    notify_first(ARGV[2])
    return token
  end
end
