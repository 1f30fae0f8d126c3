-- The usual case, before anything else: one holder, and nobody waits.
if value == ARGV[1] and redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('DEL', KEYS[1])
  if ARGV[2] ~= '' then
    -- Without the right to publish the waiters find out by themselves.
    redis.pcall('PUBLISH', ARGV[2], '')
  end
  return 1
end
