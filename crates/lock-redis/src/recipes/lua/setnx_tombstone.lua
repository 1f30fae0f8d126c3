-- Reads the tombstone of a lock that has moved, and refreshes it if less than half of its life is left.
-- KEYS: lock, text. ARGV: unit in ms.
-- Returns {tombstone, ms left}, or 0 if there is none.
if not is_moved(redis.pcall('GET', KEYS[1]), ARGV[1]) then
  return 0
end
local text = tombstone(KEYS[2])
local life = tonumber(string.match(text, ' life=(%d+)'))
local left = math.min(redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]))
if life and left < life / 2 then
  redis.call('PEXPIRE', KEYS[2], life)
  redis.call('PEXPIRE', KEYS[1], life)
  left = life
end
return {text, math.max(left, 0)}
