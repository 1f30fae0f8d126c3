-- Writes to the fence what begins with a token that is not of the clock.
local function carry_on(fence, lasting)
  if tonumber(string.match(fence, '^%d+') or 0) - tonumber(micros) > 60000000 then
    -- Far ahead of the clock, which could not carry on from there.
    redis.call('SET', KEYS[2], fence)
  else
    redis.call('SET', KEYS[2], fence, 'PX', lasting)
  end
end

-- Mints the token of a grant in the usual case, in which the clock is beyond the last one, and notes who got it: "token
-- owner since info".
-- Answers the token; or nothing and what the fence says, or an error when it holds something else. Then the fence is as
-- before, but for the ttl.
local function mint_by_clock(owner, info, lasting)
  local fence = micros .. ' ' .. owner .. ' ' .. micros .. ' ' .. info
  local before = redis.pcall('SET', KEYS[2], fence, 'PX', lasting, 'GET')
  local is_text = type(before) == 'string'
  if not before or (is_text and before < micros and string.byte(before, #micros + 1) == 32) then
    return micros
  end
  if is_text then
    carry_on(before, lasting)
  end
  return nil, before
end
