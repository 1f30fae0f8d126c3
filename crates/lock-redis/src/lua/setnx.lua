-- What the scripts of the recipe setnx-timestamp have in common. KEYS: lock, fence.
--
-- The lock is the time at which it ends, and does not say whose it is. So the fence does, for those who hold it by
-- these scripts: "token owner since value sent info", and without `value sent` once they have given it back. The lock is
-- the owner's while it is that value and the fence names the owner. `sent` is when the value was sent, in us by the
-- owner's clock.

local function read_fence()
  local fence = redis.pcall('GET', KEYS[2])
  local parts = {string.match(type(fence) == 'string' and fence or '', '^(%d+) (%x+) (%d+) (%d+) (%d+) (.*)$')}
  return parts[1] and {token = parts[1], owner = parts[2], since = parts[3], value = parts[4],
    sent = parts[5], info = parts[6]}
end

-- What the fence says of the owner, if the lock is the owner's.
local function holds(owner)
  local fence = read_fence()
  return fence and fence.owner == owner and redis.pcall('GET', KEYS[1]) == fence.value and fence
end

-- What the fence says of one who holds the lock by this value.
local function text_of(fence, value, sent)
  return table.concat({fence.token, fence.owner, fence.since, value, sent, fence.info}, ' ')
end

-- Writes another time for the owner, unless that was sent before the one that is there.
local function write(fence, value, sent, lasting)
  if tonumber(sent) < tonumber(fence.sent) then
    return
  end
  local left = redis.call('PTTL', KEYS[2])
  redis.call('SET', KEYS[2], text_of(fence, value, sent), 'KEEPTTL')
  if left ~= -1 and left < tonumber(lasting) then
    redis.call('PEXPIRE', KEYS[2], lasting)
  end
  redis.call('SET', KEYS[1], value)
end

-- Notes that the lock is the owner's no more: a client of other make may write the same time in the same millisecond.
local function forget(fence)
  local parts = {fence.token, fence.owner, fence.since, fence.info}
  redis.call('SET', KEYS[2], table.concat(parts, ' '), 'KEEPTTL')
end

-- The time that a value says, in ms, or nil when it says none: what is not between 1973 and 5138 has another unit, or
-- is no time, and its lock is not to be taken over. A fraction is allowed.
local function time_of(value, unit)
  local number = type(value) == 'string' and string.match(value, '^%d+%.?%d*$') and tonumber(value)
  local time = number and number * unit
  return time and time >= 1e11 and time < 1e14 and time or nil
end

local function is_over(value, unit, now)
  local time = time_of(value, unit)
  return time and time < tonumber(now)
end
