-- Removes what an owner has on this master: the lock, its queue entry, its turn.
-- KEYS: lock, wait queue, turn.
-- ARGV: owner, for how many ms the next waiter has precedence or '' to notify none, and for a waiter also: waiter, its inbox,
-- the start of its wait to stay in the queue or '' to leave it. Trailing '' are left out.
-- Returns whether the owner held the lock; as {that, 1} if there may be waiters. For a waiter that is also given as the owner,
-- returns whether it had the turn.
local held, had = 0, 0
if is_owners(ARGV[1]) then
  held = redis.call('DEL', KEYS[1])
  had = held
end
local waiter, since = ARGV[3], ARGV[5] or ''
if since ~= '' then
  local added = redis.pcall('ZADD', KEYS[2], 'NX', since, waiter .. ' ' .. ARGV[4])
  if type(added) == 'number' then
    redis.call('PEXPIRE', KEYS[2], 5000)
  end
elseif redis.call('EXISTS', KEYS[2], KEYS[3]) == 0 then
  return held
elseif waiter then
  redis.pcall('ZREM', KEYS[2], waiter .. ' ' .. ARGV[4])
  if redis.pcall('GET', KEYS[3]) == waiter then
    redis.call('DEL', KEYS[3])
    had = ARGV[1] == waiter and 1 or held
  end
end

-- A turn that was given while this owner held the lock is void.
if (ARGV[2] or '') == '' or redis.call('EXISTS', KEYS[1], held == 0 and KEYS[3] or KEYS[1]) > 0 then
  return {had, 1}
end
-- Gives the turn to the first waiter whose process listens; the others are refused for a moment.
while true do
  local first = redis.pcall('ZRANGE', KEYS[2], 0, 0)[1]
  if not first then
    -- A waiter with the turn may still be about to ask.
    return redis.call('EXISTS', KEYS[3]) == 1 and {had, 1} or had
  end
  local notified, inbox = string.match(first, '^(%x+) (.+)$')
  local delivered = notified and redis.pcall('PUBLISH', inbox, 'turn ' .. notified .. ' ' .. KEYS[1]) or 0
  if type(delivered) ~= 'number' then
    -- The user has no right to publish; the waiters may be alive.
    return {had, 1}
  end
  redis.call('ZREM', KEYS[2], first)
  -- The count includes subscribers to patterns.
  local listeners = delivered > 0 and redis.pcall('PUBSUB', 'NUMSUB', inbox)
  if listeners and (listeners.err or listeners[2] > 0) then
    redis.call('SET', KEYS[3], notified, 'PX', ARGV[2])
    return {had, 1}
  end
end
