-- Writes a fence whose token is not from the clock.
local function set_fence(fence, fence_ttl)
  if tonumber(string.match(fence, '^%d+') or 0) - tonumber(micros) > 60000000 then
    -- Far ahead of the clock: without a ttl, as the clock would not be beyond it after that.
    redis.call('SET', KEYS[2], fence)
  else
    redis.call('SET', KEYS[2], fence, 'PX', fence_ttl)
  end
end

-- Mints the token of a grant in the common case, a clock beyond the last token, and writes the fence: "token owner since
-- info".
-- Returns the token; else nil and the fence, or an error if the key has another type. The fence is then as before, except
-- for its ttl.
local function mint_by_clock(owner, info, fence_ttl)
  local fence = micros .. ' ' .. owner .. ' ' .. micros .. ' ' .. info
  local before = redis.pcall('SET', KEYS[2], fence, 'PX', fence_ttl, 'GET')
  local is_text = type(before) == 'string'
  if not before or (is_text and before < micros and string.byte(before, #micros + 1) == 32) then
    return micros
  end
  if is_text then
    set_fence(before, fence_ttl)
  end
  return nil, before
end
