-- The usual case, before anything else: a lock that is free, nobody waits, and the token that is proposed is larger than
-- the last one.
if ARGV[5] ~= '' and redis.call('EXISTS', KEYS[3], KEYS[4]) == 0
    and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local fence = ARGV[5] .. ' ' .. ARGV[1] .. ' ' .. ARGV[6] .. ' ' .. ARGV[3]
  local before = redis.pcall('SET', KEYS[2], fence, 'PX', ARGV[4], 'GET')
  local last = type(before) == 'string' and string.match(before, '^%d+')
  if not before or (last and #last == #ARGV[5] and last < ARGV[5]) then
    return ARGV[5]
  end
  -- It is not: as if nothing had happened but for the ttl, for what follows.
  redis.call('DEL', KEYS[1])
  if type(before) == 'string' then
    redis.call('SET', KEYS[2], before, 'KEEPTTL')
  end
end
