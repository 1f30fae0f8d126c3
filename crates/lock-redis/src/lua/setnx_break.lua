-- Removes the lock, whoever holds it, unless the key is not a lock.
-- KEYS: lock, fence. ARGV: -, unit in ms, the time before which a lock has ended.
-- Returns the type of the key; 'none' for a lock that has ended.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  kind = is_over(redis.call('GET', KEYS[1]), ARGV[2], ARGV[3]) and 'none' or kind
  local fence = read_fence()
  if fence then
    forget(fence)
  end
  redis.call('DEL', KEYS[1])
end
return kind
