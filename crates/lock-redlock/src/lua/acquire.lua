-- Acquires the lock on this master for an owner, and mints the token of the grant: the proposed one, or else the clock, if
-- that is larger than the last one; otherwise the last one plus one.
-- KEYS: lock, tokens, wait queue, turn.
-- ARGV: "owner since info", ttl in ms, proposed token or '', for how many ms the last token is kept, and for a waiter also:
-- waiter, its inbox, the start of its wait or '' to leave the queue.
-- Returns the token, or {0, remaining ttl in ms, type of the key}.
-- If the owner holds the lock already, by plain commands or an earlier sending, it mints another token.
--
-- The wait queue is ordered by the start of each wait, and so alike on all masters. It is a hint: a notified waiter has
-- precedence for a moment, nothing more.
local waiter, since = ARGV[5], ARGV[7] or ''
local entry = waiter and waiter .. ' ' .. ARGV[6]
local has_queue = redis.call('EXISTS', KEYS[3], KEYS[4]) > 0
local turn = has_queue and redis.pcall('GET', KEYS[4])
local yields = type(turn) == 'string' and turn ~= waiter
local taken = not yields and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if not taken and value ~= ARGV[1] then
  local ends_in = redis.call('PTTL', yields and KEYS[4] or KEYS[1])
  if since ~= '' then
    local added = redis.pcall('ZADD', KEYS[3], 'NX', since, entry)
    if type(added) == 'number' then
      -- Waiters ask again every two seconds; a queue without living waiters expires.
      redis.call('PEXPIRE', KEYS[3], 5000)
    end
    -- It will be notified; the end of the turn is no reason to ask.
    ends_in = yields and -1 or ends_in
  elseif has_queue and waiter then
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
if has_queue and waiter then
  redis.pcall('ZREM', KEYS[3], entry)
  if turn == waiter then
    redis.call('DEL', KEYS[4])
  end
end
return token
