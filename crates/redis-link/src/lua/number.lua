-- Tokens are compared as text: a double is exact only up to 2^53.

-- Whether one number is larger than another.
local function is_larger(one, other)
  return #one > #other or (#one == #other and one > other)
end

-- The number after this one.
local function successor(number)
  local head, nines = string.match(number, '^(.-)(9*)$')
  local last = head == '' and '1' or string.sub(head, 1, -2) .. (string.sub(head, -1) + 1)
  return last .. string.rep('0', #nines)
end
