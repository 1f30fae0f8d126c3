-- Gives back what an owner has on one of several masters: the lock, its place in the line, its turn.
-- KEYS: lock, line, turn.
-- ARGV: owner, for how many ms the next goes first once it is called or '' to call nobody, and for one who waits also:
-- waiter, its inbox, since when it waits if it is to stand in the line or '' if not. What is '' at the end is left out.
-- Answers whether the lock was the owner's until now, in {that, 1} if somebody may be waiting for it. A waiter that is named
-- as the owner has no lock: it is answered whether it was its turn.
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

-- Whoever was called while the lock was ours has found that it is not free.
if (ARGV[2] or '') == '' or redis.call('EXISTS', KEYS[1], held == 0 and KEYS[3] or KEYS[1]) > 0 then
  return {had, 1}
end
-- The first whose process is there to hear it goes, and the others hold back for a moment.
while true do
  local first = redis.pcall('ZRANGE', KEYS[2], 0, 0)[1]
  if not first then
    -- Whoever was overtaken may still be on its way.
    return redis.call('EXISTS', KEYS[3]) == 1 and {had, 1} or had
  end
  local called, inbox = string.match(first, '^(%x+) (.+)$')
  local heard = called and redis.pcall('PUBLISH', inbox, 'turn ' .. called .. ' ' .. KEYS[1]) or 0
  if type(heard) ~= 'number' then
    -- The owner has no right to call anybody, which says nothing of those who wait.
    return {had, 1}
  end
  redis.call('ZREM', KEYS[2], first)
  -- Some may listen to patterns.
  local listeners = heard > 0 and redis.pcall('PUBSUB', 'NUMSUB', inbox)
  if listeners and (listeners.err or listeners[2] > 0) then
    redis.call('SET', KEYS[3], called, 'PX', ARGV[2])
    return {had, 1}
  end
end
