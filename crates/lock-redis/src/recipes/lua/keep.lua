-- The first renewal after a hand-over, which also notifies the next waiter that it is now the first.
-- KEYS: lock, last token, queue. ARGV: as of extend.
-- Returns 1 if the owner holds the lock, else 0.
if not is_ours then
  if not value then
    -- The lock is free by now: the first waiter has to ask.
    notify_first(0)
  end
  return 0
end
notify_first(ARGV[2])
