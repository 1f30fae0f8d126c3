-- What the lock is: the owner id of the one who holds it alone, or one of these two; then the holders are a sorted
-- set of owner ids by the time, in ms, at which the share of each ends. False when it is free, an error when the key
-- is used for something else. Kept up to date by whatever changes it.
local SHARED, PERMITS = 'polylock:shared', 'polylock:permits'
local value = redis.pcall('GET', KEYS[1])

local function is_shared()
  return value == SHARED or value == PERMITS
end
