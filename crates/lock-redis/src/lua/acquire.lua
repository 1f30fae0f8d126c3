-- Takes the lock for an owner and mints the token of this grant, as one of several masters.
-- KEYS: lock, fence, line, turn.
-- ARGV: owner, ttl in ms, info, ttl of the fence in ms, proposed token or '', waiter or '', its inbox, since when it waits
-- or '' for one who is to leave the line.
-- Answers {1, token}, or {0, remaining ttl in ms, type of the key}.
-- Sent again by the same owner it answers the same.
--
-- The line has those who wait on several masters, by the time since when they do, so that it is the same on all. It is a
-- hint: whoever has been called may go first for a moment, and that is all.
local in_line = redis.call('EXISTS', KEYS[3], KEYS[4]) > 0
local turn = in_line and redis.pcall('GET', KEYS[4])
local yields = type(turn) == 'string' and turn ~= ARGV[6]
local taken = not yields and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not taken then
  if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
    local ends_in = redis.call('PTTL', yields and KEYS[4] or KEYS[1])
    if ARGV[8] ~= '' then
      local added = redis.pcall('ZADD', KEYS[3], 'NX', ARGV[8], ARGV[6] .. ' ' .. ARGV[7])
      if type(added) == 'number' then
        -- Whoever waits asks again every two seconds; entries of the dead are not to stay.
        redis.call('PEXPIRE', KEYS[3], 5000)
      end
      -- It is called when it is its turn.
      ends_in = yields and -1 or ends_in
    elseif in_line and ARGV[6] ~= '' then
      redis.pcall('ZREM', KEYS[3], ARGV[6] .. ' ' .. ARGV[7])
    end
    return {0, ends_in, redis.call('TYPE', KEYS[1]).ok}
  end
  local token, owner = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%x+) ')
  if owner == ARGV[1] then
    return {1, token}
  end
end

local token = mint(ARGV[1], ARGV[3], ARGV[4], ARGV[5] ~= '' and ARGV[5])
if token.err then
  redis.call('DEL', KEYS[1])
  return token
end
if in_line and ARGV[6] ~= '' then
  redis.pcall('ZREM', KEYS[3], ARGV[6] .. ' ' .. ARGV[7])
  if turn == ARGV[6] then
    redis.call('DEL', KEYS[4])
  end
end
return {1, token}
