-- Raises the last token to a floor if the owner holds the lock, so that later tokens are larger.
-- KEYS: lock, fence, queue, holders. ARGV: owner, floor, ttl of the fence in ms.
-- Returns 1 if the owner holds the lock, else 0.
if not holds(ARGV[1]) then
  return 0
end
local last, rest = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)(.*)$')
-- If another owner has the last grant, its name is dropped: when it confirms, it gets a token above the floor.
local is_ours = rest and string.match(rest, '^ (%x+) ') == ARGV[1]
if not last or is_larger(ARGV[2], last) or (ARGV[2] == last and not is_ours) then
  set_fence(ARGV[2] .. (is_ours and rest or ''), ARGV[3])
end
return 1
