-- Lets the lock end later on one of several masters. Never takes it.
-- KEYS: lock, tokens. ARGV: owner, ttl in ms, for how many ms the last token is kept unless it is a week.
-- Answers 1 when it is the owner's, else 0.
if not is_owners(ARGV[1]) then
  return 0
end
-- The lock last: if a right is missing, nothing has happened to it.
redis.call('PEXPIRE', KEYS[2], ARGV[3] or '604800000')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
