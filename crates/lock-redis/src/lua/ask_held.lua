-- The next common cases: the confirmation of a grant, and a lock that another owner holds exclusively.
local function granted()
  local token, owner = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%x+) ')
  if owner == ARGV[1] then
    return token
  end
  return mint(ARGV[1], ARGV[3], fence_ttl)
end

local function queue_up()
  if entry == '' then
    return -1
  end
  local position = redis.call('LPOS', KEYS[3], entry) or redis.call('RPUSH', KEYS[3], entry) - 1
  -- Waiters ask again every two seconds; a queue without living waiters expires.
  redis.call('PEXPIRE', KEYS[3], 5000)
  if position == 1 and string.find(redis.call('LINDEX', KEYS[3], 0), '^free ') then
    -- Only the marker of leave_free.lua is before it: it is the first waiter, which watches the key.
    return 0
  end
  return position
end

if value == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  notify_first(ARGV[2])
  return granted()
end
if type(value) == 'string' and not is_shared() then
  if is_moved() then
    return {0, redis.call('PTTL', KEYS[1]), value, -1}
  end
  return {0, redis.call('PTTL', KEYS[1]), 'string', queue_up()}
end
