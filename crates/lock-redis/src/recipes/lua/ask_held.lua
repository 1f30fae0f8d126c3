-- The next common case: a lock that another owner holds exclusively.

-- Returns the position in the queue. Behind a first waiter `in_doubt` the queue is not kept alive: see advance in queue.lua.
local function queue_up(in_doubt)
  if entry == '' then
    return -1
  end
  local position = queue_call('LPOS', entry)
  -- First, as it needs no memory: see mint.lua.
  if in_doubt then
    redis.pcall('ZREM', KEYS[2], '')
  else
    redis.call('PEXPIRE', KEYS[3], QUEUE_TTL)
  end
  position = position or queue_call('RPUSH', entry) - 1
  if position == 0 then
    -- The queue may be new.
    redis.call('PEXPIRE', KEYS[3], QUEUE_TTL)
  end
  if position == 1 and string.find(queue_call('LINDEX', 0), '^free ') then
    -- Only the marker of leave_free.lua is before it: it is the first waiter, which watches the key.
    return 0
  end
  return position
end

if type(value) == 'string' and not is_shared() then
  if is_moved() then
    return {0, redis.call('PTTL', KEYS[1]), string.sub(value, 1, LONGEST_READ), -1}
  end
  return {0, redis.call('PTTL', KEYS[1]), 'string', queue_up()}
end
