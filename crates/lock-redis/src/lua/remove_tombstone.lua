-- Removes a tombstone, and raises the last token.
-- KEYS: lock, fence, and the text of the tombstone if that is beside the lock.
-- ARGV: tombstone, floor, time after which nothing is removed in us, ttl of the fence in ms.
-- Returns 1 if it was removed, 0 if there is none or another one, -1 if it is too late.
if value ~= ARGV[1] then
  return 0
end
if is_larger(micros, ARGV[3]) then
  return -1
end
local last = string.match(redis.call('GET', KEYS[2]) or '', '^%d+')
if not last or is_larger(ARGV[2], last) then
  set_fence(ARGV[2], ARGV[4])
end
redis.call('DEL', KEYS[1], KEYS[3] or KEYS[1])
return 1
