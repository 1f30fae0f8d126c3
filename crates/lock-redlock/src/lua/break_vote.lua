-- Removes the lock on this master if it is one of these, as inspect_vote shows them, unless the key is not a lock. Executed late, it breaks
-- the lock of no later holder.
-- KEYS: lock. ARGV: the owners, or other values.
-- Returns the type of the key, `other` for another lock.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'string' then
  return kind
end
local value = redis.call('GET', KEYS[1])
for _, broken in ipairs(ARGV) do
  if value == broken or string.sub(value, 1, #broken + 1) == broken .. ' ' then
    redis.call('DEL', KEYS[1])
    return kind
  end
end
return 'other'
