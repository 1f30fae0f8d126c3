-- Looks at the lock.
-- KEYS: lock, fence. ARGV: channel of those who wait.
-- Answers {type, value, token, owner, info, since, waiters}.
local kind = redis.call('TYPE', KEYS[1]).ok
local value = kind == 'string' and redis.call('GET', KEYS[1]) or ''
local fence = redis.call('HMGET', KEYS[2], 'token', 'owner', 'info', 'since')
local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
return {kind, value, fence[1] or '', fence[2] or '', fence[3] or '', fence[4] or '', listeners[2] or 0}
