-- The state on one master. The value of the lock is "owner since info" of its holder, which is unique. The last token is the
-- score of a sorted set member, which plain commands can raise.
local value = redis.pcall('GET', KEYS[1])

local function is_owners(owner)
  return type(value) == 'string' and string.sub(value, 1, #owner + 1) == owner .. ' '
end
