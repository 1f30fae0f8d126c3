-- The usual case of one who was told that it has the lock, before anything else.
if value == ARGV[1] then
  local token, owner = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%x+) ')
  if owner == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    call_first(ARGV[2])
    return token
  end
end
