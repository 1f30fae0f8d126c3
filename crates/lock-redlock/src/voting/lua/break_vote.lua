-- Removes the lock on this master, whoever holds it, if its value is the one that was seen, unless the key is not a lock.
-- KEYS: lock. ARGV: hash of the value, or '' to look.
-- Returns {'broken'}, or {type of the key, hash of its value}.
local kind = redis.call('TYPE', KEYS[1]).ok
local hash = kind == 'string' and redis.sha1hex(redis.call('GET', KEYS[1])) or ''
if kind ~= 'string' or hash ~= ARGV[1] then
  return {kind, hash}
end
redis.call('DEL', KEYS[1])
return {'broken'}
