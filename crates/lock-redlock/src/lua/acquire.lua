-- Takes the lock for an owner and mints the token of this grant, as one of several masters: the one that is proposed, or
-- else the clock, if that is larger than the last one.
-- KEYS: lock, tokens, line, turn.
-- ARGV: "owner since info", ttl in ms, proposed token or '', for how many ms the last token is kept, and for one who waits
-- also: waiter, its inbox, since when it waits or '' for one who is to leave the line.
-- Answers the token, or {0, remaining ttl in ms, type of the key}.
-- Where the lock is the owner's already, as plain commands have taken it or this is sent again, it mints another token.
--
-- The line has those who wait on several masters, by the time since when they do, so that it is the same on all. It is a
-- hint: whoever has been called may go first for a moment, and that is all.
local waiter, since = ARGV[5], ARGV[7] or ''
local entry = waiter and waiter .. ' ' .. ARGV[6]
local in_line = redis.call('EXISTS', KEYS[3], KEYS[4]) > 0
local turn = in_line and redis.pcall('GET', KEYS[4])
local yields = type(turn) == 'string' and turn ~= waiter
local taken = not yields and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not taken and value ~= ARGV[1] then
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

local last = last_token()
local token = ARGV[3] ~= '' and ARGV[3] or micros
if type(last) == 'string' and not is_larger(token, last) then
  token = successor(last)
end
local failed = type(last) == 'table' and last or note(token, ARGV[4])
if failed then
  redis.call('DEL', KEYS[1])
  return failed
end
if in_line and waiter then
  redis.pcall('ZREM', KEYS[3], entry)
  if turn == waiter then
    redis.call('DEL', KEYS[4])
  end
end
return token
