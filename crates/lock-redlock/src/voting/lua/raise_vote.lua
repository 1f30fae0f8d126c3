-- Raises the last token on this master to a floor if the owner holds the lock, so that later tokens are larger.
-- KEYS: lock, tokens. ARGV: owner, floor, for how many ms the last token is kept.
-- Returns 1 if the owner holds the lock, else 0.
if not is_owners(ARGV[1]) then
  return 0
end
local last = last_token()
if type(last) == 'table' then
  return last
end
-- See acquire.lua.
redis.pcall('ZREM', KEYS[2], '')
return is_larger(ARGV[2], last or '') and note(ARGV[2], ARGV[3]) or 1
