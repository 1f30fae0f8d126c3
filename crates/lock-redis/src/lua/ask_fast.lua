-- The common case first: a free lock, no waiters, and a clock beyond the last token. The same as mint_by_clock, but
-- without a function, whose definition costs as much as a command.
local entry, mode, fence_ttl = ARGV[4] or '', ARGV[5] or 'x', ARGV[6] or '604800000'
if mode == 'x' and redis.call('EXISTS', KEYS[3]) == 0
    and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local fence = micros .. ' ' .. ARGV[1] .. ' ' .. micros .. ' ' .. ARGV[3]
  local before = redis.pcall('SET', KEYS[2], fence, 'PX', fence_ttl, 'GET')
  local is_text = type(before) == 'string'
  if not before or (is_text and before < micros and string.byte(before, #micros + 1) == 32) then
    return micros
  end
  -- The clock is not beyond it: undo both writes, except for the ttl, and go on below.
  redis.call('DEL', KEYS[1])
  if is_text then
    redis.call('SET', KEYS[2], before, 'KEEPTTL')
  end
end
