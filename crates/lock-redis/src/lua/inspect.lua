-- Looks at the lock.
-- KEYS: lock, fence. ARGV: channel of those who wait.
-- Answers {type, value, fence, waiters}.
local kind = redis.call('TYPE', KEYS[1]).ok
local value = kind == 'string' and redis.call('GET', KEYS[1]) or ''
local fence = redis.pcall('GET', KEYS[2])
local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
return {kind, value, type(fence) == 'string' and fence or '', listeners[2] or 0}
