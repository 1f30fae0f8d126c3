-- Raises the last token to a floor if the owner holds the lock, so that later tokens are larger.
-- KEYS: lock, last token, fence. ARGV: owner, floor, ttl of the last token in ms.
-- Returns 1 if the owner holds the lock, else 0.
return holds(ARGV[1]) and (raise_last(ARGV[2], ARGV[3]) or 1) or 0
