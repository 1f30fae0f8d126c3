-- Removes the lock, whoever holds it, unless the key is not a lock.
-- KEYS: lock, last token, fence, text of a tombstone. ARGV: -, unit in ms, the time before which a lock has ended.
-- Returns the type of the key; 'none' for a lock that has ended; the tombstone of a lock that has moved, which stays.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  local value = redis.call('GET', KEYS[1])
  if is_moved(value, ARGV[2]) then
    return tombstone(KEYS[4])
  end
  kind = is_over(value, ARGV[2], ARGV[3]) and 'none' or kind
  local fence = read_fence()
  redis.call('DEL', KEYS[1])
  if fence then
    forget(fence)
  end
end
return kind
