-- The next common case: hands the lock over to the first waiter, which wants it exclusively, and notifies it with its
-- token. The waiter behind it is notified only by the confirmation, so that this one runs first.
-- Kept small: everything that a script defines costs time in each call.
local owner, grace, fence_ttl, length, rest = string.match(first or '', '^(%x+) x (%d+) (%d+) (%d+) (.*)$')
local delivered

-- Reports whether the lock was handed over, with a token from this mint. `delivered` is the answer to PUBLISH.
local function pass_on(mint)
  local inbox, info = string.sub(rest, 1, length), string.sub(rest, length + 2)
  -- Before the notification, on which the waiter relies.
  local token = mint(owner, info, fence_ttl)
  if not token then
    return false
  end
  delivered = 0
  if not token.err then
    redis.call('SET', KEYS[1], owner, 'PX', grace)
    local publish = string.find(inbox, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
    delivered = redis.pcall(publish, inbox, 'passed ' .. owner .. ' ' .. token .. ' ' .. KEYS[1])
    if publish == 'PUBLISH' and type(delivered) == 'number' and delivered > 0 then
      -- The count includes subscribers to patterns.
      local listeners = redis.pcall('PUBSUB', 'NUMSUB', inbox)
      delivered = listeners.err and delivered or listeners[2]
    end
  end
  return type(delivered) == 'number' and delivered > 0
end

if owner and pass_on(mint_by_clock) then
  return 1
end
