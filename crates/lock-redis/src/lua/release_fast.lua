-- The common case first: an exclusive holder and no waiters. With waiters, the first is removed from the queue here.
local first = value == ARGV[1] and redis.call('LPOP', KEYS[3])
if value == ARGV[1] and not first then
  redis.call('DEL', KEYS[1])
  if (ARGV[2] or '') ~= '' then
    -- Without the right to publish, the waiters poll.
    redis.pcall('PUBLISH', ARGV[2], '')
  end
  return 1
end
