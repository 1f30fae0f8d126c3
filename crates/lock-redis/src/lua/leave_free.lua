-- Gives back a lock that its owner holds alone, and leaves it free for a moment: waiters in the queue hold back for so long,
-- and clients that stand in no queue can take it. What the owner shares is released as ever, by what follows.
-- ARGV[4]: for how many ms. Until when it is free stands ahead of the queue, where advance reads it.
if value == ARGV[1] then
  redis.call('DEL', KEYS[1])
  call_first(ARGV[4])
  local waiters = redis.call('LPUSH', KEYS[3], string.format('free %d', now + ARGV[4])) - 1
  redis.call('PEXPIRE', KEYS[3], waiters > 0 and 5000 or ARGV[4])
  return 1
end
