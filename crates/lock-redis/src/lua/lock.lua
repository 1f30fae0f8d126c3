-- The values of a lock with several holders. The holders are then a sorted set of owner ids, scored by the end of each
-- share in ms.
local SHARED, PERMITS = 'polylock:shared', 'polylock:permits'

local function is_shared()
  return value == SHARED or value == PERMITS
end
