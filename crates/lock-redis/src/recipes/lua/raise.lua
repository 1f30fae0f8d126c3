-- Raises the last token to a floor if the owner holds the lock, so that later tokens are larger.
-- KEYS: lock, last token, queue, holders. ARGV: owner, floor, ttl of the last token in ms.
-- Returns 1 if the owner holds the lock, else 0.
if not holds(ARGV[1]) then
  return 0
end
return raise_last(ARGV[2], ARGV[3]) or 1
