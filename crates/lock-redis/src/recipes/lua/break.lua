-- Removes the lock, whoever holds it, if its value is the one that was seen, unless the key is not a lock.
-- KEYS: lock, last token, queue, holders. ARGV: hash of the value, or '' to look; channel for waiters without a queue or ''.
-- Returns {'broken'}, or {type of the key, hash of its value}; of a lock that has moved, its tombstone, which stays.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'string' or is_moved() then
  return {is_moved() and value or kind, ''}
end
local hash = redis.sha1hex(value)
if hash ~= ARGV[1] then
  return {kind, hash}
end
redis.call('DEL', KEYS[1], holders)
value = false
advance('', true)
if ARGV[2] ~= '' and has_room('x') then
  redis.pcall('PUBLISH', ARGV[2], '')
end
return {'broken'}
