-- The usual case, before anything else: a lock that is free, nobody waits, and the token that is proposed is larger than
-- the last one.
local proposal = ARGV[4] ~= '' and ARGV[4]
local asked_since, lasting = ARGV[5] or ARGV[4], ARGV[6] or '604800000'
if proposal and redis.call('EXISTS', KEYS[3], KEYS[4]) == 0
    and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local fence = proposal .. ' ' .. ARGV[1] .. ' ' .. asked_since .. ' ' .. ARGV[3]
  local before = redis.pcall('SET', KEYS[2], fence, 'PX', lasting, 'GET')
  local last = type(before) == 'string' and string.match(before, '^%d+')
  if not before or (last and #last == #proposal and last < proposal) then
    return proposal
  end
  -- It is not: as if nothing had happened but for the ttl, for what follows.
  redis.call('DEL', KEYS[1])
  if type(before) == 'string' then
    redis.call('SET', KEYS[2], before, 'KEEPTTL')
  end
end
