-- Lifts the last token of one of several masters to a floor while the lock is the owner's, so that later ones are larger.
-- KEYS: lock, tokens. ARGV: owner, floor, for how many ms the last token is kept.
-- Answers 1 when it is the owner's, else 0.
if not is_owners(ARGV[1]) then
  return 0
end
local last = last_token()
if type(last) == 'table' then
  return last
end
return is_larger(ARGV[2], last or '') and note(ARGV[2], ARGV[3]) or 1
