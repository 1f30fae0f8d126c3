-- Removes a tombstone, and raises the last token.
-- KEYS: lock, last token, and the text of the tombstone if that is beside the lock.
-- ARGV: tombstone, floor, time after which nothing is removed in us, ttl of the last token in ms.
-- Returns 1 if it was removed, 0 if there is none or another one, -1 if it is too late.
if value ~= ARGV[1] then
  return 0
end
if tonumber(micros) > tonumber(ARGV[3]) then
  return -1
end
local failed = raise_last(ARGV[2], ARGV[4])
if failed then
  return failed
end
redis.call('DEL', KEYS[1], KEYS[3] or KEYS[1])
return 1
