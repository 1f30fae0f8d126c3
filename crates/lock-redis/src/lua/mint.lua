-- First, as it is refused where the user has no right to it: then nothing has been written.
local time = redis.call('TIME')
local micros = time[1] .. string.sub('00000' .. time[2], -6)

-- Mints the token of a grant, larger than every one before, and notes who got it: "token owner since info".
-- Answers the token, or an error when the fence holds something else; then nothing has happened.
local function mint(owner, info, lasting)
  local rest = ' ' .. owner .. ' ' .. micros .. ' ' .. info
  local before = redis.pcall('SET', KEYS[2], micros .. rest, 'PX', lasting, 'GET')
  if not before then
    return micros
  end
  if before.err then
    return before
  end
  local last = string.match(before, '^%d+')
  if last and not is_larger(micros, last) then
    local token = successor(last)
    if tonumber(token) - tonumber(micros) > 60000000 then
      -- Far ahead of the clock, which could not carry on from there.
      redis.call('SET', KEYS[2], token .. rest)
    else
      redis.call('SET', KEYS[2], token .. rest, 'PX', lasting)
    end
    return token
  end
  return micros
end
