-- The usual case, before anything else: one holder, and nobody waits.
local waiting = value == ARGV[1] and redis.call('LRANGE', KEYS[3], 0, 1)
if waiting and #waiting == 0 then
  redis.call('DEL', KEYS[1])
  if (ARGV[2] or '') ~= '' then
    -- Without the right to publish the waiters find out by themselves.
    redis.pcall('PUBLISH', ARGV[2], '')
  end
  return 1
end
