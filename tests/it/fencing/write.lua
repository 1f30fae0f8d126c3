-- KEYS[1]: a hash. ARGV[1]: the fencing token. ARGV[2]: the new value; without one the value is only read.
local last, token = redis.call('HGET', KEYS[1], 'fence') or '0', ARGV[1]
-- Compared as text, since a number of Lua is exact only up to 2^53.
if #token < #last or (#token == #last and token < last) then
  return false
end
redis.call('HSET', KEYS[1], 'fence', token)
if ARGV[2] then
  redis.call('HSET', KEYS[1], 'value', ARGV[2])
end
return { redis.call('HGET', KEYS[1], 'value') }
