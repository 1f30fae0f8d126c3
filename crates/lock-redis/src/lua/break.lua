-- Takes the lock away from whoever holds it, unless the key is not a lock at all.
-- KEYS: lock, fence, queue, holders. ARGV: channel of those who wait in no queue or ''.
-- Answers the type of the key that was there.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'string' then
  redis.call('DEL', KEYS[1], holders)
  value = false
  advance('', true)
  if ARGV[1] ~= '' and has_room('x') then
    redis.pcall('PUBLISH', ARGV[1], '')
  end
end
return kind
