-- Takes the lock for an owner, confirms a grant, or queues the owner up.
-- KEYS: lock, fence, queue, holders.
-- ARGV: owner, ttl in ms, info, entry of the queue or '' for one who does not wait, mode, ttl of the fence in ms. Those
-- at the end that are as usual are left out.
-- Answers the token, or {0, ms until it ends, type of the key, place in the queue}; -1 is none.
-- Sent again by the same owner it answers the same, and the ttl counts from the last time.
if holds(ARGV[1]) then
  extend(ARGV[1], ARGV[2])
  return granted()
end

-- Who could share the lock does not wait behind one that is gone, though the lock may be held for long.
if advance(ARGV[1], false, has_room(mode)) or (redis.call('EXISTS', KEYS[3]) == 0 and has_room(mode)) then
  local token = grant(ARGV[1], mode, ARGV[2], ARGV[3], lasting)
  if not token.err then
    advance(ARGV[1], true)
  end
  return token
end

return {0, ends_in(mode), redis.call('TYPE', KEYS[1]).ok, queue_up()}
