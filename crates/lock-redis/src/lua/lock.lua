-- What the lock is when it is held by several: one of these two; then the holders are a sorted set of owner ids by the
-- time, in ms, at which the share of each ends.
local SHARED, PERMITS = 'polylock:shared', 'polylock:permits'

local function is_shared()
  return value == SHARED or value == PERMITS
end
