-- Lifts the fence to a floor while the lock is the owner's, so that later tokens are larger.
-- KEYS: lock, fence, queue, holders. ARGV: owner, floor, ttl of the fence in ms.
-- Answers 1 when it is the owner's, else 0.
if not holds(ARGV[1]) then
  return 0
end
local last, rest = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)(.*)$')
-- Whoever else was granted a token last, and has not heard of it yet, is to get one above the floor.
local is_ours = rest and string.match(rest, '^ (%x+) ') == ARGV[1]
if not last or is_larger(ARGV[2], last) or (ARGV[2] == last and not is_ours) then
  carry_on(ARGV[2] .. (is_ours and rest or ''), ARGV[3])
end
return 1
