-- The common case first: an exclusive holder and no waiters. With waiters, the first is removed from the queue here.
local first = is_ours and redis.pcall('LPOP', KEYS[3])
if type(first) == 'table' then
  if not string.find(first.err, 'WRONGTYPE', 1, true) then
    redis.call('LPOP', KEYS[3])
  end
  -- A key of another type is no queue: see waiter.lua.
  redis.call('DEL', KEYS[3])
  first = false
end
if is_ours and not first then
  -- Plain commands write a token without a ttl. One that is ahead of the clock has a longer one.
  local fence_ttl = ARGV[4] or WEEK
  if redis.call('PTTL', KEYS[2]) < fence_ttl / 2 then
    redis.call('PEXPIRE', KEYS[2], fence_ttl)
  end
  redis.call('DEL', KEYS[1])
  if (ARGV[2] or '') ~= '' then
    -- Without the right to publish, the waiters poll.
    redis.pcall('PUBLISH', ARGV[2], '')
  end
  return 1
end
