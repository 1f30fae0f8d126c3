-- Writes to the fence a token that is not of the clock.
local function carry_on(token, rest, lasting)
  if tonumber(token) - tonumber(micros) > 60000000 then
    -- Far ahead of the clock, which could not carry on from there.
    redis.call('SET', KEYS[2], token .. rest)
  else
    redis.call('SET', KEYS[2], token .. rest, 'PX', lasting)
  end
end

-- Mints the token of a grant, larger than every one before, and notes who got it: "token owner since info".
-- It is the clock, if that is large enough.
-- Answers the token, or an error when the fence holds something else; then nothing has happened.
local function mint(owner, info, lasting)
  local token, rest = micros, ' ' .. owner .. ' ' .. micros .. ' ' .. info
  local before = redis.pcall('SET', KEYS[2], token .. rest, 'PX', lasting, 'GET')
  if not before then
    return token
  end
  if before.err then
    return before
  end
  local last = string.match(before, '^%d+')
  if last and not is_larger(token, last) then
    token = successor(last)
    carry_on(token, rest, lasting)
  end
  return token
end
