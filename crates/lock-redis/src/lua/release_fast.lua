-- The usual case, before anything else: one holder, and nobody waits. Else the first is out of the queue from here on.
local first = value == ARGV[1] and redis.call('LPOP', KEYS[3])
if value == ARGV[1] and not first then
  redis.call('DEL', KEYS[1])
  if (ARGV[2] or '') ~= '' then
    -- Without the right to publish the waiters find out by themselves.
    redis.pcall('PUBLISH', ARGV[2], '')
  end
  return 1
end
