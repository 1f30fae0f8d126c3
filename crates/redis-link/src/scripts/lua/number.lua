-- Tokens are compared as text: a double is exact only up to 2^53.

-- Whether one number is larger than another.
local function is_larger(one, other)
  return #one > #other or (#one == #other and one > other)
end
