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
  -- Most tokens have as many digits; then their order is that of the text.
  if last and (#last > #micros or (#last == #micros and last >= micros)) then
    -- A double is exact up to 2^53, which as microseconds is the year 2255.
    local token = string.format('%.0f', tonumber(last) + 1)
    redis.call('SET', KEYS[2], token .. rest, 'PX', lasting)
    return token
  end
  return micros
end
