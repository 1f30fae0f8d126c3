-- Removes the lock, whoever holds it, if somebody holds it who was seen, unless the key is not a lock.
-- KEYS: lock, last token, queue, holders. ARGV: who was seen, or '' to look; channel for waiters without a queue or ''.
-- Returns {'broken'}, or {type of the key, who holds it}; of a lock that has moved, its tombstone, which stays. Holders are owner ids, as
-- the value beside them may change: with each further sharer, and when a grant is confirmed. A value without one counts by its hash.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'string' or is_moved() then
  return {is_moved() and string.sub(value, 1, LONGEST_READ) or kind, ''}
end
local owners, was_seen, is_seen = {}, {}, false
for owner in string.gmatch(ARGV[1], '%x+') do
  was_seen[owner] = true
end
if is_shared() then
  local shares = redis.pcall('ZRANGE', holders, 0, -1, 'WITHSCORES')
  for at = 1, #shares, 2 do
    if shares[at + 1] - now > 0 then
      owners[#owners + 1] = shares[at]
    end
  end
end
if #owners == 0 then
  owners[1] = string.match(value, '^(%x+) %d+ %d+ ') or redis.sha1hex(value)
end
for _, owner in ipairs(owners) do
  is_seen = is_seen or was_seen[owner]
end
if not is_seen then
  return {kind, table.concat(owners, ' ')}
end
redis.call('DEL', KEYS[1], holders)
value = false
advance('', true)
if ARGV[2] ~= '' and has_room('x') then
  redis.pcall('PUBLISH', ARGV[2], '')
end
return {'broken'}
