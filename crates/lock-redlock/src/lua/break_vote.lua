-- Removes the lock of one of several masters, whoever holds it, unless the key is not a lock at all.
-- KEYS: lock.
-- Answers the type of the key that was there.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  redis.call('DEL', KEYS[1])
end
return kind
