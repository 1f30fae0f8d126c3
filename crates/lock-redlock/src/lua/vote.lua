-- What one of several masters knows: the value of the lock is the holder as "owner since info", which nobody else has, and
-- the last token is the score of a member of a sorted set, as plain commands can raise that.
local value = redis.pcall('GET', KEYS[1])

local function is_owners(owner)
  return type(value) == 'string' and string.sub(value, 1, #owner + 1) == owner .. ' '
end
