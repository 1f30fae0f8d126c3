-- Inspects the lock on this master.
-- KEYS: lock, tokens, wait queue.
-- Returns {type, owner or another value, "token owner since info" or only the token, number of waiters, 0, 'x', ms until the
-- lock expires, {}, the first 100 waiters as {'x', waiter, since, ...}}.
local kind = redis.call('TYPE', KEYS[1]).ok
local last = redis.pcall('ZSCORE', KEYS[2], 'last')
last = type(last) == 'string' and last or ''
value = type(value) == 'string' and value or ''
local owner = string.match(value, '^(%x+) %d+ ')
local waiters = redis.pcall('ZCARD', KEYS[3])
waiters = type(waiters) == 'number' and waiters or 0
local line, queue = redis.pcall('ZRANGE', KEYS[3], 0, 99, 'WITHSCORES'), {}
for at = 1, #line, 2 do
  queue[#queue + 1] = 'x'
  queue[#queue + 1] = string.match(line[at], '^%x*')
  queue[#queue + 1] = line[at + 1]
end
local fence = owner and last .. ' ' .. value or last
return {kind, owner or value, fence, waiters, 0, 'x', redis.call('PTTL', KEYS[1]), {}, queue}
