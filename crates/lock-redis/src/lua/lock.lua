-- The values of a lock with several holders. The holders are then a sorted set of owner ids, scored by the end of each
-- share in ms.
local SHARED, PERMITS = 'polylock:shared', 'polylock:permits'

local function is_shared()
  return value == SHARED or value == PERMITS
end

-- Whether it is the tombstone of a lock that has moved to another store. No owner id begins so.
local function is_moved()
  return type(value) == 'string' and string.sub(value, 1, 14) == 'polylock:moved'
end
