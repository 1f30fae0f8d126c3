-- Reads the claim.
-- KEYS: claim.
-- Returns the migration that is noted, or '' if there is none.
return redis.call('GET', KEYS[1]) or ''
