-- Raises the last token to a floor if the owner holds the lock, so that later tokens are larger.
-- KEYS: lock, fence. ARGV: owner, floor, ttl of the fence in ms.
-- Returns 1 if the owner holds the lock, else 0.
local held = holds(ARGV[1])
if not held then
  return 0
end
if is_larger(ARGV[2], held.token) then
  held.token = ARGV[2]
  set_fence(text_of(held, held.value, held.sent), ARGV[3])
end
return 1
