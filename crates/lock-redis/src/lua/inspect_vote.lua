-- Looks at the lock as one of several masters sees it.
-- KEYS: lock, tokens, line.
-- Answers {type, owner or another value, "token owner since info" or only the token, how many stand in the line, 0}.
local kind = redis.call('TYPE', KEYS[1]).ok
local last = redis.pcall('ZSCORE', KEYS[2], 'last')
last = type(last) == 'string' and last or ''
value = type(value) == 'string' and value or ''
local owner = string.match(value, '^(%x+) %d+ ')
local waiters = redis.pcall('ZCARD', KEYS[3])
waiters = type(waiters) == 'number' and waiters or 0
return {kind, owner or value, owner and last .. ' ' .. value or last, waiters, 0}
