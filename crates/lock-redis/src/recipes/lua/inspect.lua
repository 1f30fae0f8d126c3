-- Inspects the lock.
-- KEYS: lock, last token, queue, holders. ARGV: channel for waiters without a queue, owner or ''.
-- Returns {type, owner or another value, "token owner since info" or only the last token, number of waiters, whether the
-- owner holds it}. Of a shared lock, it is the latest owner.
-- Without an owner also: mode, ms until the lock expires, the holders of a shared lock as {owner, ms until its share ends,
-- ...}, the first 100 waiters as {mode, info, '', ...}. A mode is 'x', 'r', or 'p' for holders and the number of permits for
-- waiters.
local kind = redis.call('TYPE', KEYS[1]).ok
local text = kind == 'string' and string.sub(value, 1, LONGEST_READ) or ''
local owner, token, rest = string.match(is_shared() and string.match(text, '^[^ ]+ (.*)$') or text, '^(%x+) (%d+) (%d+ .*)$')
local last = redis.pcall('ZSCORE', KEYS[2], 'last')
local fence = owner and token .. ' ' .. owner .. ' ' .. rest or type(last) == 'string' and last or ''
local holder = owner and holds(owner) and owner or text
local waiters = redis.pcall('LLEN', KEYS[3])
local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
waiters = (type(waiters) == 'number' and waiters or 0) + (listeners[2] or 0)
if string.find(redis.pcall('LRANGE', KEYS[3], 0, 0)[1] or '', '^free ') then
  -- The marker of leave_free.lua is not a waiter.
  waiters = waiters - 1
end
if ARGV[2] ~= '' then
  return {kind, holder, fence, waiters, holds(ARGV[2]) and 1 or 0}
end

local shares, queue = {}, {}
if is_shared() then
  local all = redis.pcall('ZRANGE', holders, 0, -1, 'WITHSCORES')
  for at = 1, #all, 2 do
    if all[at + 1] - now > 0 then
      shares[#shares + 1] = all[at]
      shares[#shares + 1] = all[at + 1] - now
    end
  end
end
for _, entry in ipairs(redis.pcall('LRANGE', KEYS[3], 0, 99)) do
  local owner, mode, _, _, _, info = parts(entry)
  if owner then
    queue[#queue + 1] = mode
    queue[#queue + 1] = string.sub(info, 1, LONGEST_READ)
    queue[#queue + 1] = ''
  end
end
local mode = marked() == SHARED and 'r' or marked() == PERMITS and 'p' or 'x'
return {kind, holder, fence, waiters, 0, mode, redis.call('PTTL', KEYS[1]), shares, queue}
