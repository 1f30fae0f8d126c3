-- Passes the lock on from one owner to another of the same process, unless those in the queue come first.
-- KEYS: lock, fence, queue, holders.
-- ARGV: owner, next owner, ttl in ms, info, ttl of the fence in ms, '' unless those in the queue come first.
-- Answers {1, token}, {0} when the lock was not the owner's, or {2} when it was and somebody else has it now.
redis.call('DEL', KEYS[1])
advance('', true)
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {2}
end
local token = grant(ARGV[2], 'x', ARGV[3], ARGV[4], ARGV[5])
return token.err and token or {1, token}
