-- Acquires the lock for an owner, confirms a grant, or queues the owner up.
-- KEYS: lock, last token, queue, holders.
-- ARGV: owner, ttl in ms, info, queue entry or '' for an owner that does not wait, mode, ttl of the last token in ms. Trailing
-- arguments with their default are left out.
-- Returns the token, or {0, ms until the lock expires, type of the key, position in the queue}; -1 is none.
-- Idempotent for an owner, but the ttl counts from the last call.
if holds(ARGV[1]) then
  -- A share, of which this is the latest grant. As to ZREM, see mint.lua.
  redis.pcall('ZREM', KEYS[2], '')
  local token = mint(fence_ttl)
  if not token.err then
    share(ARGV[1], marked() .. ' ' .. text_of(ARGV[1], token, ARGV[3]), ARGV[2])
  end
  return token
end

-- How many waiters for a smaller number of permits an owner may pass. With more before it, it does not look at them: everybody
-- asks every second.
local FAR = 256

local function is_near()
  return queue_call('LLEN') <= FAR or queue_call('LPOS', entry, 'MAXLEN', FAR + 1)
end

-- An owner that can share the lock does not wait behind a dead waiter, though the lock may be held for long.
local can_share = has_room(mode)
if advance(ARGV[1], false, can_share, can_share and is_near() and FAR or 0) and has_room(mode) then
  local token = grant(ARGV[1], mode, ARGV[2], ARGV[3], fence_ttl)
  if not token.err then
    advance(ARGV[1], true)
  end
  return token
end

return {0, ends_in(mode), redis.call('TYPE', KEYS[1]).ok, queue_up(in_doubt)}
