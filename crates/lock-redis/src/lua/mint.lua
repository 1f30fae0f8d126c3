-- Mints the token of a grant, larger than every earlier one.
-- Returns the token or an error.
local function mint(owner, info, fence_ttl)
  local token, before = mint_by_clock(owner, info, fence_ttl)
  if token or before.err then
    return token or before
  end
  local last = string.match(before, '^%d+')
  token = last and not is_larger(micros, last) and successor(last) or micros
  set_fence(token .. ' ' .. owner .. ' ' .. micros .. ' ' .. info, fence_ttl)
  return token
end
