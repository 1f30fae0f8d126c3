-- Lifts the fence to a floor while the lock is the owner's, so that later tokens are larger.
-- KEYS: lock, fence. ARGV: owner, floor, ttl of the fence in ms.
-- Answers 1 when it is the owner's, else 0.
local held = holds(ARGV[1])
if not held then
  return 0
end
if is_larger(ARGV[2], held.token) then
  held.token = ARGV[2]
  carry_on(text_of(held, held.value, held.sent), ARGV[3])
end
return 1
