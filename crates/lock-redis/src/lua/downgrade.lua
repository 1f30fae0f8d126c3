-- Makes an exclusive lock a shared one, and admits the readers at the head of the queue. Then extends the owner's share,
-- as extend does; when sent again it does only that.
-- KEYS: lock, last token, queue, holders. ARGV: owner, ttl in ms, ttl of the last token in ms, channel for waiters without a queue
-- or ''. The last two are left out if they are a week and ''.
if is_ours then
  -- Left by holders of a shared lock whose key was deleted.
  redis.call('DEL', holders)
  share(ARGV[1], SHARED .. ' ' .. value, ARGV[2])
  advance('', false, true)
  if (ARGV[4] or '') ~= '' and redis.call('EXISTS', KEYS[3]) == 0 then
    redis.pcall('PUBLISH', ARGV[4], '')
  end
end
