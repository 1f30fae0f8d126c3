-- Extends the lock on this master. Never acquires it.
-- KEYS: lock, tokens. ARGV: owner, ttl in ms, for how many ms the last token is kept unless it is a week, and, if a longer ttl is to
-- be shortened, something. Without that a request which is executed late shortens nothing.
-- Returns 1 if the owner holds the lock, else 0.
if not is_owners(ARGV[1]) then
  return 0
end
-- The lock last: if a right is missing, it is unchanged.
redis.call('PEXPIRE', KEYS[2], ARGV[3] or WEEK)
if ARGV[4] or redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
