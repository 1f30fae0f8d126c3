local token = next_token(ARGV[2])
while first[1] do
  -- As written by the client: owner, secret, grace period and ttl of the last token in ms, length of the inbox, inbox, info.
  local owner, secret, grace, fence_ttl, length, rest =
    string.match(first[1], '^(%x+):(%x+) (%d+) (%d+) (%d+) (.*)$')
  local delivered = 0
  if owner then
    local inbox, info = string.sub(rest, 1, length), string.sub(rest, length + 2)
    -- Before the notification, on which the waiter relies.
    delivered = type(token) == 'table' and token or note(token, fence_ttl)
    if not delivered then
      redis.call('SET', KEYS[1], owner .. ' ' .. ARGV[2] .. ' ' .. info, 'PX', grace)
      -- The hash proves the token: see message.rs.
      local proof = redis.sha1hex(token .. ':' .. KEYS[1] .. ':' .. secret)
      delivered = redis.pcall('PUBLISH', inbox, 'passed ' .. owner .. ' ' .. token .. ' ' .. proof .. ' ' .. KEYS[1])
    end
    -- The count includes subscribers to patterns.
    local listeners = type(delivered) == 'number' and delivered > 0 and redis.pcall('PUBSUB', 'NUMSUB', inbox)
    if listeners and not listeners.err then
      delivered = listeners[2]
    end
  end
  if type(delivered) ~= 'number' then
    -- There is no token, or the user has no right to publish. The waiter may be alive.
    redis.call('ZADD', KEYS[3], first[2], first[1])
    redis.call('PEXPIRE', KEYS[3], QUEUE_TTL)
    break
  end
  if delivered > 0 then
    return {held, 1}
  end
  first = redis.pcall('ZPOPMIN', KEYS[3])
end
redis.call('DEL', KEYS[1])
return first[1] and {held, 1} or held
