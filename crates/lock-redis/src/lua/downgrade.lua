-- Lets readers share a lock that its owner holds alone, and lets in those who wait before the first that is none. What
-- follows extends the owner's share, as any other; sent again it does no more than that.
-- KEYS: lock, fence, queue, holders. ARGV: owner, ttl in ms, ttl of the fence in ms, channel of those who wait in no
-- queue or ''. The last two are left out when they are a week and ''.
if value == ARGV[1] then
  -- Of holders whose lock was deleted under them.
  redis.call('DEL', holders)
  share(ARGV[1], SHARED, ARGV[2])
  advance('', false, true)
  if (ARGV[4] or '') ~= '' and redis.call('EXISTS', KEYS[3]) == 0 then
    redis.pcall('PUBLISH', ARGV[4], '')
  end
end
