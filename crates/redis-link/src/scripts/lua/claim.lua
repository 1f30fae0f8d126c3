-- Notes which migration takes part, unless another one is noted.
-- KEYS: claim. ARGV: the migration.
-- Returns the migration that is noted.
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])
