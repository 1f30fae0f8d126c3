-- The common case first: a free lock, no waiters, and a clock beyond the last token. The same as grant, but without
-- functions, whose definitions cost as much as a command.
local entry, mode, fence_ttl = ARGV[4] or '', ARGV[5] or 'x', ARGV[6] or WEEK
local token = string.format('%.0f', micros - micros % BLOCK)
if mode == 'x' and redis.call('EXISTS', KEYS[1], KEYS[3]) == 0
    and redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. ' ' .. micros .. ' ' .. ARGV[3], 'NX', 'PX', ARGV[2]) then
  if redis.pcall('ZADD', KEYS[2], 'GT', 'CH', token, 'last') == 1 then
    redis.call('PEXPIRE', KEYS[2], fence_ttl)
    return token
  end
  -- The clock is not beyond it: undo the grant, and go on below.
  redis.call('DEL', KEYS[1])
end
