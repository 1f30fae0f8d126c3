-- Lets the lock end later, if it is the owner's. Never takes it.
-- KEYS: lock, fence. ARGV: owner, ttl in ms, ttl of the fence in ms.
-- Answers 1 when it is the owner's, else 0.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
