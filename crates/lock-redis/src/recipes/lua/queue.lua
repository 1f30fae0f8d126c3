-- The queue, for all scripts that have one: who is in it, who is alive, and whether a free lock goes to the next one or is left free for
-- a moment (advance). KEYS: lock, last token, queue, holders; the holders are the last.
local holders = KEYS[#KEYS]
local now = tonumber(string.sub(micros, 1, -4))

-- A mode is 'x' for exclusive, 'r' for readers, or the number of permits.
local function marker(mode)
  return mode == 'r' and SHARED or PERMITS
end

-- The number of unexpired shares.
local function sharers()
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', now)
  return redis.call('ZCARD', holders)
end

-- Sets the value of a shared lock, and its end to that of its last share.
local function settle(shared)
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  redis.call('SET', KEYS[1], shared, 'PXAT', last)
  value = shared
  redis.call('PEXPIREAT', holders, last)
end

local function share(owner, shared, ttl)
  -- See mint.lua.
  redis.call('ZREM', holders, '')
  redis.call('ZADD', holders, now + ttl, owner)
  settle(shared)
end

-- Whether the owner holds the lock, exclusively or shared.
local function holds(owner)
  if is_shared() then
    local ends = redis.call('ZSCORE', holders, owner)
    return ends and tonumber(ends) > now
  end
  return is_owners(owner)
end

local function extend(owner, ttl)
  if is_owners(owner) then
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
  if mode == 'x' or marked() ~= marker(mode) then
    return false
  end
  return mode == 'r' or sharers() < tonumber(mode)
end

-- What the lock says of an owner.
local function text_of(owner, token, info)
  return owner .. ' ' .. token .. ' ' .. micros .. ' ' .. info
end

-- Grants the lock; the caller has checked for room. Returns as mint.
local function grant(owner, mode, ttl, info, fence_ttl)
  local token = mint(fence_ttl)
  if token.err then
    return token
  end
  local held = text_of(owner, token, info)
  if mode == 'x' then
    redis.call('SET', KEYS[1], held, 'PX', ttl)
    value = held
  else
    if not value then
      -- Left by holders of a shared lock whose key was deleted.
      redis.call('DEL', holders)
    end
    share(owner, marker(mode) .. ' ' .. held, ttl)
  end
  return token
end

-- For how many ms more the lock is left free for clients without a queue entry.
local free_for

-- Whether there is room for a waiter that could not be notified. It may be dead: only a living one keeps the queue alive, by
-- asking itself. Else the queue expires, and the others enter a new one.
local in_doubt

-- The time until there may be room for this mode, in ms; -1 if the lock does not expire.
local function ends_in(mode)
  if tonumber(mode) and marked() == PERMITS and sharers() > 0 then
    return redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] - now
  end
  return value and redis.call('PTTL', KEYS[1]) or free_for or -1
end

-- How far a release looks behind waiters that let others pass. Further ones ask by themselves, every second.
local NEAR = 16

-- Grants the lock to waiters in order, while there is room, for the grace period in which they have to confirm. Removes
-- waiters whose process is dead. The first waiter without room is notified when to ask, if it has just become the first. If
-- only its number of permits is used up, those behind it that have a larger one may pass, as far as `depth` waiters back.
-- Returns true if nobody is before the owner `me`, which has to be granted by the caller if there is room.
local function advance(me, is_new_first, check_alive, depth)
  -- The waiters that were passed, and their largest number.
  local passed, used_up = 0, 0
  -- The next waiters, read in pieces that double.
  local waiters, at = {}, 1
  depth = depth or NEAR
  while true do
    if at > #waiters then
      waiters, at = queue_call('LRANGE', passed, math.min(2 * passed, depth)), 1
    end
    local entry = waiters[at]
    if not entry then
      return true
    end
    at = at + 1
    local owner, mode, grace, fence_ttl, inbox, info, secret = parts(entry)
    -- See leave_free.lua. A moment of five seconds or more means that the clock was set back.
    local free_until = not owner and not value and tonumber(string.match(entry, '^free (%d+)$'))
    if free_until and free_until > now and free_until <= now + 5000 then
      free_for = free_until - now
      if is_new_first then
        -- A new first waiter has not been notified of it.
        notify_first(free_for, 1)
      end
      return false
    end
    local permits = tonumber(mode)
    if owner and (permits and permits <= used_up or not has_room(mode)) then
      local stays = owner == me
      if not stays and is_new_first and passed == 0 then
        stays = notify(inbox, 'next', owner, ends_in(mode))
      elseif not stays then
        -- Behind the first, only who lets nobody pass is in the way.
        stays = not check_alive or passed > 0 and permits or has_listeners(inbox)
      end
      if not stays then
        queue_call('LREM', 1, entry)
        is_new_first = is_new_first or passed == 0
      elseif owner == me or passed == depth or not permits or marked() ~= PERMITS then
        return false
      else
        passed, used_up = passed + 1, math.max(used_up, permits)
      end
    else
      local delivered = owner and owner ~= me
        and notify(inbox, 'granted', owner, redis.sha1hex('granted:' .. KEYS[1] .. ':' .. secret) .. ' ' .. KEYS[1])
      if delivered == 'perhaps' then
        -- It may be alive, and then asks by itself.
        in_doubt = true
        return false
      end
      queue_call('LREM', 1, entry)
      if owner and owner == me then
        return true
      end
      if delivered then
        local token = grant(owner, mode, grace, info, fence_ttl)
        if token.err then
          -- Nobody gets the lock. The caller reports why.
          return true
        end
      end
      is_new_first = is_new_first or passed == 0
    end
  end
end
