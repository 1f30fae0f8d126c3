-- Extends the lock, or the owner's share of it, for the last time: its guard is gone. From then on another owner id, which is
-- nobody's, has it: a renewal that is executed late does not find its owner. Then only the ttl may change, and only to a shorter one, as
-- this request may be executed late too.
-- KEYS: lock, last token, and holders if the owner may share it. ARGV: owner, ttl in ms, ttl of the last token in ms unless it is a
-- week.
-- Returns 1 if the owner holds the lock, or has left it, else 0.
local nobody = string.sub(redis.sha1hex('left:' .. ARGV[1]), 1, #ARGV[1])
local is_left = holds(nobody)
if not is_left and not holds(ARGV[1]) then
  return 0
end
local fence_ttl = ARGV[3] or WEEK
if redis.call('PTTL', KEYS[2]) < fence_ttl / 2 then
  redis.call('PEXPIRE', KEYS[2], fence_ttl)
end
if is_left then
  local left = is_shared() and redis.call('ZSCORE', holders, nobody) - now or redis.call('PTTL', KEYS[1])
  if left > tonumber(ARGV[2]) then
    extend(nobody, ARGV[2])
  end
elseif is_shared() then
  -- The value names the latest holder, which may be another one.
  redis.call('ZREM', holders, ARGV[1])
  share(nobody, (string.gsub(value, '^([^ ]+ )' .. ARGV[1] .. ' ', '%1' .. nobody .. ' ')), ARGV[2])
else
  -- See mint.lua.
  redis.pcall('ZREM', KEYS[2], '')
  redis.call('SET', KEYS[1], nobody .. string.sub(value, #ARGV[1] + 1), 'PX', ARGV[2])
end
return 1
