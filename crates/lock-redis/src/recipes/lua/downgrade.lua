-- Makes an exclusive lock a shared one, and admits the readers at the head of the queue. Then extends the owner's share,
-- as extend does; when sent again it does only that.
-- KEYS: lock, last token, queue, holders. ARGV: as of extend, and the fourth: channel for waiters without a queue or ''.
if is_ours then
  -- Left by holders of a shared lock whose key was deleted.
  redis.call('DEL', holders)
  local left = (ARGV[5] or '') == '' and redis.call('PTTL', KEYS[1]) or 0
  share(ARGV[1], SHARED .. ' ' .. value, math.max(left, tonumber(ARGV[2])))
  advance('', false, true)
  if (ARGV[4] or '') ~= '' and redis.call('EXISTS', KEYS[3]) == 0 then
    redis.pcall('PUBLISH', ARGV[4], '')
  end
end
