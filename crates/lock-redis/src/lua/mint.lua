-- Mints the token of a grant, larger than every one before.
-- Answers as mint_by_clock, but with a token or an error.
local function mint(owner, info, lasting)
  local token, before = mint_by_clock(owner, info, lasting)
  if token or before.err then
    return token or before
  end
  local last = string.match(before, '^%d+')
  token = last and not is_larger(micros, last) and successor(last) or micros
  carry_on(token .. ' ' .. owner .. ' ' .. micros .. ' ' .. info, lasting)
  return token
end
