-- Reads the tombstone of a lock that has moved, and refreshes it if less than half of its life is left.
-- KEYS: lock.
-- Returns {tombstone, ms left}, or 0 if there is none.
if not is_moved() then
  return 0
end
local left, life = redis.call('PTTL', KEYS[1]), tonumber(string.match(value, ' life=(%d+)'))
if life and left < life / 2 then
  redis.call('PEXPIRE', KEYS[1], life)
  left = life
end
return {string.sub(value, 1, LONGEST_READ), math.max(left, 0)}
