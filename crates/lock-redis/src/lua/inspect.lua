-- Looks at the lock.
-- KEYS: lock, fence, queue, holders. ARGV: channel of those who wait in no queue, owner or ''.
-- Answers {type, value, fence, waiters, whether it is the owner's}. Of those who share a lock it shows the last.
local kind = redis.call('TYPE', KEYS[1]).ok
local holder = kind == 'string' and value or ''
local fence = redis.pcall('GET', KEYS[2])
fence = type(fence) == 'string' and fence or ''
local last = string.match(fence, '^%d+ (%x+) ')
if is_shared() and last and holds(last) then
  holder = last
end
local waiters = redis.pcall('LLEN', KEYS[3])
local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
waiters = (type(waiters) == 'number' and waiters or 0) + (listeners[2] or 0)
if string.find(redis.pcall('LRANGE', KEYS[3], 0, 0)[1] or '', '^free ') then
  -- It is left free: see leave_free.lua.
  waiters = waiters - 1
end
return {kind, holder, fence, waiters, holds(ARGV[2]) and 1 or 0}
