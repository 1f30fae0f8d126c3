-- Replaces the lock of an exclusive owner by a tombstone, and notifies all waiters.
-- KEYS: lock, last token, queue. ARGV: owner, tombstone, its life in ms, channel for waiters without a queue or ''.
-- Returns 1 if the tombstone is there, else 0.
if value == ARGV[2] then
  -- Written by an earlier sending of this request: its life counts from now on, as the caller takes it.
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return 1
end
if not is_ours then
  return 0
end
-- See mint.lua.
redis.pcall('ZREM', KEYS[2], '')
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
local entries = redis.pcall('LRANGE', KEYS[3], 0, -1)
for _, entry in ipairs(entries) do
  local owner, _, _, _, inbox = parts(entry)
  if owner then
    notify(inbox, 'next', owner, 0)
  end
end
if #entries > 0 then
  -- The lock has moved, whatever is refused now.
  redis.pcall('DEL', KEYS[3])
end
if ARGV[4] ~= '' then
  redis.pcall('PUBLISH', ARGV[4], '')
end
return 1
