-- The first renewal of a lock that was passed on, after which the one behind the owner learns that it is the first.
-- KEYS: lock, fence, queue. ARGV: owner, ttl in ms, ttl of the fence in ms unless it is a week.
-- Answers 1 when it is the owner's, else 0.
if value ~= ARGV[1] then
  if not value then
    -- It went meanwhile: whoever is the first now is to ask.
    call_first(0)
  end
  return 0
end
call_first(ARGV[2])
