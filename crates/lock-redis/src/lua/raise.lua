-- Lifts the fence to a floor while the lock is the owner's, so that later tokens are larger.
-- KEYS: lock, fence, queue, holders. ARGV: owner, floor, ttl of the fence in ms.
-- Answers 1 when it is the owner's, else 0.
if not holds(ARGV[1]) then
  return 0
end
local last, rest = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)(.*)$')
if not last or is_larger(ARGV[2], last) then
  carry_on(ARGV[2] .. (rest or ''), ARGV[3])
end
return 1
