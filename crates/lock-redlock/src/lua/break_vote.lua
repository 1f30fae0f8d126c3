-- Removes the lock on this master, whoever holds it, unless the key is not a lock.
-- KEYS: lock.
-- Returns the type of the key.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  redis.call('DEL', KEYS[1])
end
return kind
