-- Removes the lock, whoever holds it, if it is the one that was seen, unless the key is not a lock.
-- KEYS: lock, last token, fence, text of a tombstone. ARGV: who was seen, or '' to look; unit in ms, the time before which a lock
-- has ended.
-- Returns {'broken'}, or {type of the key, who holds it: an owner id, or the hash of the value of another client}; 'none' for a lock that has ended, which is removed; the tombstone of a lock that has
-- moved, which stays.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'string' then
  return {kind, ''}
end
local value = redis.call('GET', KEYS[1])
if is_moved(value, ARGV[2]) then
  return {tombstone(KEYS[4]), ''}
end
local fence, ended = read_fence(), is_over(value, ARGV[2], ARGV[3])
local owner = fence and fence.value == value and fence.owner or redis.sha1hex(value)
if not ended and owner ~= ARGV[1] then
  return {kind, owner}
end
redis.call('DEL', KEYS[1])
if fence then
  forget(fence)
end
return ended and {'none', ''} or {'broken'}
