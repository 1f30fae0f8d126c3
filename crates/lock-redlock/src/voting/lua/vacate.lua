-- Removes what an owner has on this master: the lock and its queue entry. A lock that is free then is handed over to the first
-- waiter whose process listens, for the grace period in which it has to confirm, with a token.
-- KEYS: lock, tokens, wait queue.
-- ARGV: owner, proposed token, queue entry of the owner or ''. Trailing '' are left out.
-- Returns whether the owner held the lock; as {that, 1} if there may be waiters.
local is_ours = is_owners(ARGV[1])
local held = is_ours and 1 or 0
if redis.pcall('PTTL', KEYS[2]) == -1 then
  -- A claim by plain commands was cut off before the last of them.
  redis.call('PEXPIRE', KEYS[2], WEEK)
end
if (ARGV[3] or '') ~= '' then
  redis.pcall('ZREM', KEYS[3], ARGV[3])
end
if value and not is_ours then
  return redis.call('EXISTS', KEYS[3]) == 1 and {0, 1} or 0
end
-- The common case first: there are no waiters.
local first = redis.pcall('ZPOPMIN', KEYS[3])
if not first[1] then
  return is_ours and redis.call('DEL', KEYS[1]) or 0
end
