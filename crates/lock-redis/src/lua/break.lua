-- Removes the lock, whoever holds it, unless the key is not a lock.
-- KEYS: lock, last token, queue, holders. ARGV: channel for waiters without a queue or ''.
-- Returns the type of the key; of a lock that has moved, its tombstone, which stays.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  if is_moved() then
    return value
  end
  redis.call('DEL', KEYS[1], holders)
  value = false
  advance('', true)
  if ARGV[1] ~= '' and has_room('x') then
    redis.pcall('PUBLISH', ARGV[1], '')
  end
end
return kind
