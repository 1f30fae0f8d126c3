-- Takes the lock for an owner, confirms a grant, or queues the owner up.
-- KEYS: lock, fence, queue, holders.
-- ARGV: owner, ttl in ms, info, ttl of the fence in ms, mode, entry of the queue or '' for one who does not wait.
-- Answers {1, token}, or {0, ms until it ends, type of the key, place in the queue}; -1 is none.
-- Sent again by the same owner it answers the same, and the ttl counts from the last time.
if holds(ARGV[1]) then
  extend(ARGV[1], ARGV[2])
  return granted()
end

-- Who could share the lock does not wait behind one that is gone, though the lock may be held for long.
if advance(ARGV[1], false, has_room(ARGV[5])) or (redis.call('EXISTS', KEYS[3]) == 0 and has_room(ARGV[5])) then
  local token = grant(ARGV[1], ARGV[5], ARGV[2], ARGV[3], ARGV[4])
  if token.err then
    return token
  end
  advance(ARGV[1], true)
  return {1, token}
end

return {0, ends_in(ARGV[5]), redis.call('TYPE', KEYS[1]).ok, queue_up()}
