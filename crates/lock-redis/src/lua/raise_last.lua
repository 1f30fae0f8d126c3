-- Raises the last token to a floor: later ones are larger. Returns an error, or nothing.
local function raise_last(floor, fence_ttl)
  if tonumber(floor) > LARGEST_TOKEN then
    return too_large()
  end
  -- See mint.lua.
  redis.pcall('ZREM', KEYS[2], '')
  local raised = redis.pcall('ZADD', KEYS[2], 'GT', 'CH', floor, 'last')
  if raised == 1 then
    keep(floor, fence_ttl)
  elseif raised ~= 0 then
    return raised
  end
end
