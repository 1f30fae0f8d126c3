-- The next common case: hands the lock over to the first waiter, which wants it exclusively, and notifies it with its
-- token, which the hash proves: see message.rs. The waiter behind it is notified only by the confirmation, so that this one runs first.
-- Kept small: everything that a script defines costs time in each call.
local owner, secret, grace, fence_ttl, length, rest =
  string.match(first or '', '^(%x+):(%x+) x (%d+) (%d+) (%d+) (.*)$')
local delivered
if owner then
  local inbox, info = string.sub(rest, 1, length), string.sub(rest, length + 2)
  -- Before the notification, on which the waiter relies.
  local token = mint(fence_ttl)
  delivered = 0
  if not token.err then
    redis.call('SET', KEYS[1], owner .. ' ' .. token .. ' ' .. micros .. ' ' .. info, 'PX', grace)
    local publish = string.find(inbox, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
    local proof = redis.sha1hex(token .. ':' .. KEYS[1] .. ':' .. secret)
    delivered = redis.pcall(publish, inbox, 'passed ' .. owner .. ' ' .. token .. ' ' .. proof .. ' ' .. KEYS[1])
    if publish == 'PUBLISH' and type(delivered) == 'number' and delivered > 0 then
      -- The count includes subscribers to patterns.
      local listeners = redis.pcall('PUBSUB', 'NUMSUB', inbox)
      delivered = listeners.err and delivered or listeners[2]
    end
  end
  if type(delivered) == 'number' and delivered > 0 then
    return 1
  end
end
-- Puts back a waiter that can share the lock, or that could not be notified for want of a right: release.lua below
-- handles it.
if first and type(delivered) ~= 'number' and redis.call('LPUSH', KEYS[3], first) == 1 then
  redis.call('PEXPIRE', KEYS[3], QUEUE_TTL)
end
