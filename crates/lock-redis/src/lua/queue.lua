-- What the scripts of the queue have in common. KEYS: lock, fence, queue, holders; the holders are the last.
local holders = KEYS[#KEYS]
local now = tonumber(string.sub(micros, 1, -4))

-- A mode is 'x' for one holder alone, 'r' for readers, or how many permits there are.
local function marker(mode)
  return mode == 'r' and SHARED or PERMITS
end

-- How many share the lock still.
local function sharers()
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', now)
  return redis.call('ZCARD', holders)
end

-- The lock lasts as long as the last of those who share it.
local function settle(marker)
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  redis.call('SET', KEYS[1], marker, 'PXAT', last)
  value = marker
  redis.call('PEXPIREAT', holders, last)
end

local function share(owner, marker, ttl)
  redis.call('ZADD', holders, now + ttl, owner)
  settle(marker)
end

-- Whether the owner holds the lock, alone or with others.
local function holds(owner)
  if is_shared() then
    local ends = redis.call('ZSCORE', holders, owner)
    return ends and tonumber(ends) > now
  end
  return value == owner
end

local function extend(owner, ttl)
  if value == owner then
    redis.call('PEXPIRE', KEYS[1], ttl)
  else
    share(owner, value, ttl)
  end
end

-- Whether the lock can be granted in this mode now.
local function has_room(mode)
  if not value then
    return true
  end
  if mode == 'x' or value ~= marker(mode) then
    return false
  end
  return mode == 'r' or sharers() < tonumber(mode)
end

-- Grants the lock where there is room. Answers as mint.
local function grant(owner, mode, ttl, info, lasting)
  local token = mint(owner, info, lasting)
  if token.err then
    return token
  end
  if mode == 'x' then
    redis.call('SET', KEYS[1], owner, 'PX', ttl)
    value = owner
  else
    if not value then
      -- Of holders whose lock was deleted under them.
      redis.call('DEL', holders)
    end
    share(owner, marker(mode), ttl)
  end
  return token
end

-- For how many ms more the lock is left free for clients that stand in no queue.
local free_for

-- When there may be room for this mode, in ms: -1 if it does not end by itself.
local function ends_in(mode)
  if tonumber(mode) and value == PERMITS and sharers() > 0 then
    return redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] - now
  end
  return value and redis.call('PTTL', KEYS[1]) or free_for or -1
end

-- Grants the lock to those who wait, in order and while there is room, for a short time in which they are to
-- confirm it; passes over those whose process is gone. The first for whom there is no room learns when it may
-- look, if it has come to stand there just now. Stops at `me`, and says so. `doubts` whether the first is still there.
local function advance(me, moved, doubts)
  while true do
    local entry = redis.call('LINDEX', KEYS[3], 0)
    if not entry then
      return false
    end
    local owner, mode, short, lasting, inbox, info = parts(entry)
    -- See leave_free.lua. No moment is as long as five seconds, unless the clock was set back.
    local free_until = not owner and not value and tonumber(string.match(entry, '^free (%d+)$'))
    if free_until and free_until > now and free_until <= now + 5000 then
      free_for = free_until - now
      if moved then
        -- Who has come up meanwhile does not know of it.
        call_first(free_for, 1)
      end
      return false
    end
    if owner and not has_room(mode) then
      local stays = owner == me
      if not stays and moved then
        stays = tell(inbox, 'next', owner, ends_in(mode))
      elseif not stays then
        stays = not doubts or listens(inbox)
      end
      if stays then
        return false
      end
      redis.call('LPOP', KEYS[3])
      moved = true
    else
      local heard = owner and owner ~= me and tell(inbox, 'granted', owner, KEYS[1])
      if heard == 'perhaps' then
        -- It finds out by itself.
        return false
      end
      redis.call('LPOP', KEYS[3])
      if owner and owner == me then
        return true
      end
      if heard then
        local token = grant(owner, mode, short, info, lasting)
        if token.err then
          return false
        end
      end
      moved = true
    end
  end
end
