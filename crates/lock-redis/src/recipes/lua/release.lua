-- Releases what an owner has: the lock, its share of it, or its queue entry.
-- KEYS: lock, last token, queue, holders. ARGV: owner, channel for waiters without a queue or '', queue entry or '', ttl of the last
-- token in ms unless it is a week. Trailing '' are left out.
-- Returns 1 if the owner held the lock, else 0.
local held = 0
if is_ours then
  -- Free for the next waiter; the key is deleted below if there is none.
  held, value = 1, false
elseif is_shared() then
  local ends = redis.call('ZSCORE', holders, ARGV[1])
  held = ends and tonumber(ends) > now and 1 or 0
  if redis.call('ZREM', holders, ARGV[1]) == 1 then
    if sharers() == 0 then
      redis.call('DEL', KEYS[1], holders)
      value = false
    else
      settle(value)
    end
  end
end

local left = 0
if held == 0 and ARGV[3] then
  left = queue_call('LREM', 1, ARGV[3])
end
if held == 0 and redis.pcall('PTTL', KEYS[2]) == -1 then
  -- A claim by plain commands was cut off before the last of them.
  redis.call('PEXPIRE', KEYS[2], ARGV[4] or WEEK)
end
if held == 1 or left == 1 then
  advance('', true)
  if not value then
    redis.call('DEL', KEYS[1])
  end
  if (ARGV[2] or '') ~= '' and redis.call('EXISTS', KEYS[3]) == 0 and (not value or is_shared()) then
    redis.pcall('PUBLISH', ARGV[2], '')
  end
end
return held
