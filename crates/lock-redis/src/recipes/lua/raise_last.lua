-- Raises the last token to a floor: later ones are larger. Returns an error, or nothing.
local function raise_last(floor, fence_ttl)
  if tonumber(floor) > LARGEST_TOKEN then
    return too_large()
  end
  -- See mint.lua.
  redis.pcall('ZREM', KEYS[2], '')
  local raised = redis.pcall('ZADD', KEYS[2], 'GT', 'CH', floor, 'last')
  if raised == 1 then
    -- That of a lock with a long ttl is longer already, and has to outlive its lease.
    keep(floor, fence_ttl, redis.call('PTTL', KEYS[2]))
  elseif raised ~= 0 then
    return raised
  end
end
