-- The next common cases: a lock that the owner has already, and one that another owner holds exclusively.
local function queue_up()
  if entry == '' then
    return -1
  end
  local position = redis.call('LPOS', KEYS[3], entry)
  -- Waiters ask again every two seconds; a queue without living waiters expires. First, as it needs no memory: see mint.lua.
  redis.call('PEXPIRE', KEYS[3], 5000)
  position = position or redis.call('RPUSH', KEYS[3], entry) - 1
  if position == 0 then
    -- The queue may be new.
    redis.call('PEXPIRE', KEYS[3], 5000)
  end
  if position == 1 and string.find(redis.call('LINDEX', KEYS[3], 0), '^free ') then
    -- Only the marker of leave_free.lua is before it: it is the first waiter, which watches the key.
    return 0
  end
  return position
end

-- By plain commands, whose token was not beyond the last one, or by a grant that the owner now confirms. Not the clock: the
-- next token that this client proposes may be a little below it, and would need a script again.
if is_owners(ARGV[1]) then
  -- See mint.lua.
  redis.pcall('ZREM', KEYS[2], '')
  local token = mint_next(fence_ttl)
  if not token.err then
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. ' ' .. micros .. ' ' .. ARGV[3], 'PX', ARGV[2])
    notify_first(ARGV[2])
  end
  return token
end
if type(value) == 'string' and not is_shared() then
  if is_moved() then
    return {0, redis.call('PTTL', KEYS[1]), value, -1}
  end
  return {0, redis.call('PTTL', KEYS[1]), 'string', queue_up()}
end
