-- The next usual cases: a grant that is to be confirmed, and a lock that somebody else holds alone.
local function granted()
  local token, owner = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%x+) ')
  if owner == ARGV[1] then
    return token
  end
  return mint(ARGV[1], ARGV[3], lasting)
end

local function queue_up()
  if entry == '' then
    return -1
  end
  local place = redis.call('LPOS', KEYS[3], entry) or redis.call('RPUSH', KEYS[3], entry) - 1
  -- Whoever waits asks again every two seconds; entries of the dead are not to stay.
  redis.call('PEXPIRE', KEYS[3], 5000)
  if place == 1 and string.find(redis.call('LINDEX', KEYS[3], 0), '^free ') then
    -- No waiter is before it: see leave_free.lua. The first watches the key.
    return 0
  end
  return place
end

if value == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  call_first(ARGV[2])
  return granted()
end
if type(value) == 'string' and not is_shared() then
  return {0, redis.call('PTTL', KEYS[1]), 'string', queue_up()}
end
