-- Gives the lock back if it is the owner's.
-- KEYS: lock. ARGV: owner, channel of those who wait or ''.
-- Answers 1 when it was the owner's until now, else 0.

-- A key of another type is an error here, and so not the owner's.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
if ARGV[2] ~= '' then
  -- Without the right to publish the waiters find out by themselves.
  redis.pcall('PUBLISH', ARGV[2], '')
end
return 1
