-- The tombstone of a lock that has moved to another store, in the recipe setnx-timestamp: the lock is a time around the year
-- 5000, for which clients of the recipe wait, and expires. The text is in a key beside it, with the same ttl.

-- Whether the value of a lock is such a time.
local function is_moved(value, unit)
  local time = time_of(value, unit)
  return time and time >= 9e13
end

-- The text; only that the lock has moved if it is missing.
local function tombstone(key)
  local text = redis.pcall('GET', key)
  return type(text) == 'string' and string.sub(text, 1, 14) == 'polylock:moved' and string.sub(text, 1, LONGEST_READ)
    or 'polylock:moved'
end
