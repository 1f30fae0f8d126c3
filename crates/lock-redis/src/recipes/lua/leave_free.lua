-- Releases an exclusive lock, and leaves it free for a moment: waiters in the queue hold back, and clients without a queue
-- entry can acquire it. A share is released as usual, by release.lua below.
-- ARGV: as of release, and the fifth: the moment in ms. Its end is stored at the head of the queue, where advance reads it.
if is_ours then
  redis.call('DEL', KEYS[1])
  notify_first(ARGV[5])
  local waiters = queue_call('LPUSH', string.format('free %d', now + ARGV[5])) - 1
  redis.call('PEXPIRE', KEYS[3], waiters > 0 and QUEUE_TTL or ARGV[5])
  return 1
end
