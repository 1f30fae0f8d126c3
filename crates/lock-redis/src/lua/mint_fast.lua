-- Writes a fence whose token is not from the clock.
local function set_fence(fence, fence_ttl)
  -- What is ahead of the clock is kept until the clock is beyond it; but a ttl has a limit.
  local ahead = math.max(0, tonumber(string.match(fence, '^%d+') or 0) - tonumber(micros))
  redis.call('SET', KEYS[2], fence, 'PX', string.format('%.0f', fence_ttl + math.min(math.ceil(ahead / 1000), 1e14)))
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
