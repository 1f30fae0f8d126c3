-- The values of a lock with several holders: a marker, and "owner token since info" of the latest of them. The holders are
-- then a sorted set of owner ids, scored by the end of each share in ms.
local SHARED, PERMITS = 'polylock:shared', 'polylock:permits'

-- The marker that the value begins with, if it does.
local function marked()
  return type(value) == 'string' and string.match(value, '^polylock:%l+')
end

local function is_shared()
  local marker = marked()
  return marker == SHARED or marker == PERMITS
end

-- Whether it is the tombstone of a lock that has moved to another store.
local function is_moved()
  return marked() == 'polylock:moved'
end

-- Whether this owner holds the lock alone.
local function is_owners(owner)
  return type(value) == 'string' and string.sub(value, 1, #owner + 1) == owner .. ' '
end
