-- The usual case, before anything else: a lock that is free, nobody waits, and the clock is beyond the last token.
local entry, mode, lasting = ARGV[4] or '', ARGV[5] or 'x', ARGV[6] or '604800000'
if mode == 'x' and redis.call('EXISTS', KEYS[3]) == 0
    and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local token = mint_by_clock(ARGV[1], ARGV[3], lasting)
  if token then
    return token
  end
  -- As if nothing had happened, for what follows.
  redis.call('DEL', KEYS[1])
end
