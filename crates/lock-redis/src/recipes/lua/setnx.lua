-- The common parts of the scripts of the recipe setnx-timestamp. KEYS: lock, last token, fence.
--
-- The lock is the time at which it ends, and does not name its owner. The fence does, for holders of these scripts: "token
-- owner since value sent info", and without `value sent` after the release. The owner holds the lock while the fence names
-- the owner and the lock is that value. `sent` is when the value was sent, in us by the owner's clock.

local function read_fence()
  local fence = redis.pcall('GET', KEYS[3])
  local parts = {string.match(type(fence) == 'string' and fence or '', '^(%d+) (%x+) (%d+) (%d+) (%d+) (.*)$')}
  return parts[1] and {token = parts[1], owner = parts[2], since = parts[3], value = parts[4],
    sent = parts[5], info = parts[6]}
end

-- The fence, if the owner holds the lock.
local function holds(owner)
  local fence = read_fence()
  return fence and fence.owner == owner and redis.pcall('GET', KEYS[1]) == fence.value and fence
end

-- The text of the fence for a holder with this value.
local function text_of(fence, value, sent)
  return table.concat({fence.token, fence.owner, fence.since, value, sent, fence.info}, ' ')
end

-- Writes another time for the owner, unless it was sent before the present one.
local function write(fence, value, sent, fence_ttl)
  if tonumber(sent) < tonumber(fence.sent) then
    return
  end
  -- First, as it needs no memory: see mint.lua.
  redis.call('PEXPIRE', KEYS[3], math.max(redis.call('PTTL', KEYS[3]), tonumber(fence_ttl)))
  redis.call('SET', KEYS[3], text_of(fence, value, sent), 'KEEPTTL')
  if redis.call('PTTL', KEYS[2]) < fence_ttl / 2 then
    redis.call('PEXPIRE', KEYS[2], fence_ttl)
  end
  redis.call('SET', KEYS[1], value)
end

-- Notes that the owner no longer holds the lock: another client may write the same time in the same millisecond. To be called
-- after another write, see mint.lua.
local function forget(fence)
  local parts = {fence.token, fence.owner, fence.since, fence.info}
  redis.call('SET', KEYS[3], table.concat(parts, ' '), 'KEEPTTL')
end

-- The time of a value in ms, or nil. A value outside of 1973 to 5138 has another unit or is not a time, and its lock is
-- never taken over. A fraction is allowed.
local function time_of(value, unit)
  local number = type(value) == 'string' and string.match(value, '^%d+%.?%d*$') and tonumber(value)
  local time = number and number * unit
  return time and time >= 1e11 and time < 1e14 and time or nil
end

local function is_over(value, unit, now)
  local time = time_of(value, unit)
  return time and time < tonumber(now)
end
