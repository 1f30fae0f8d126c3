-- Takes the lock for an owner and mints the token of this grant, as one of several masters.
-- KEYS: lock, fence, line, turn.
-- ARGV: owner, ttl in ms, info, proposed token or '', since when it is asked for in us, ttl of the fence in ms, and for one
-- who waits also: waiter, its inbox, since when it waits or '' for one who is to leave the line. Those at the end that are
-- as usual are left out: it is asked for since the time that is the token, and nobody waits.
-- Answers the token, or {0, remaining ttl in ms, type of the key}.
-- Sent again by the same owner it answers the same.
--
-- The line has those who wait on several masters, by the time since when they do, so that it is the same on all. It is a
-- hint: whoever has been called may go first for a moment, and that is all.
local waiter, since = ARGV[7], ARGV[9] or ''
local entry = waiter and waiter .. ' ' .. ARGV[8]
local in_line = redis.call('EXISTS', KEYS[3], KEYS[4]) > 0
local turn = in_line and redis.pcall('GET', KEYS[4])
local yields = type(turn) == 'string' and turn ~= waiter
local taken = not yields and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not taken then
  if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
    local ends_in = redis.call('PTTL', yields and KEYS[4] or KEYS[1])
    if since ~= '' then
      local added = redis.pcall('ZADD', KEYS[3], 'NX', since, entry)
      if type(added) == 'number' then
        -- Whoever waits asks again every two seconds; entries of the dead are not to stay.
        redis.call('PEXPIRE', KEYS[3], 5000)
      end
      -- It is called when it is its turn.
      ends_in = yields and -1 or ends_in
    elseif in_line and waiter then
      redis.pcall('ZREM', KEYS[3], entry)
    end
    return {0, ends_in, redis.call('TYPE', KEYS[1]).ok}
  end
  local token, owner = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%x+) ')
  if owner == ARGV[1] then
    return token
  end
end

local token = mint(ARGV[1], ARGV[3], lasting, proposal, proposal and asked_since)
if token.err then
  redis.call('DEL', KEYS[1])
  return token
end
if in_line and waiter then
  redis.pcall('ZREM', KEYS[3], entry)
  if turn == waiter then
    redis.call('DEL', KEYS[4])
  end
end
return token
