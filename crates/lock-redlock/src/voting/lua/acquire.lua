-- Acquires the lock on this master for an owner, and mints the token of the grant: the proposed one, or else the clock, if
-- that is larger than the last one; otherwise the block after the last one.
-- KEYS: lock, tokens, wait queue.
-- ARGV: "owner since info", ttl in ms, proposed token or '', for how many ms the last token is kept, and for a waiter also:
-- its queue entry, the start of its wait.
-- Returns the token, or {0, remaining ttl in ms, type of the key}.
-- If the owner holds the lock already, by plain commands, a hand-over or an earlier sending, it mints another token, and
-- never shortens the lease.
--
-- The wait queue is ordered by the start of each wait, and so alike on all masters. It is a hint: whoever finds the lock free
-- may have it. A waiter whose clock is far ahead counts from when it has joined: else those who come later would pass it for as
-- long. Clocks that differ by less than a second order it: masters that count by their own would choose different waiters.
--
-- When its memory is full, Redis refuses SET and ZADD, but not after another write of the same script. So what keeps, hands
-- over or waits for a lock begins with a write that needs no memory: if it has no other, with a ZREM that removes nothing. What
-- acquires a free lock does not.
local entry = ARGV[5]
local is_ours = is_owners(string.match(ARGV[1], '^%x*'))
if value and not is_ours then
  if entry then
    redis.pcall('ZREM', KEYS[3], '')
    local since = math.min(tonumber(ARGV[6]), tonumber(micros) + 1000000)
    if type(redis.pcall('ZADD', KEYS[3], 'NX', string.format('%.0f', since), entry)) == 'number' then
      redis.call('PEXPIRE', KEYS[3], QUEUE_TTL)
    end
  end
  return {0, redis.call('PTTL', KEYS[1]), redis.call('TYPE', KEYS[1]).ok}
end
if is_ours then
  redis.pcall('ZREM', KEYS[2], '')
  redis.call('SET', KEYS[1], ARGV[1], 'PX', math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end

local token = next_token(ARGV[3] ~= '' and ARGV[3] or block_of(micros))
local failed = type(token) == 'table' and token or note(token, ARGV[4])
if failed then
  redis.call('DEL', KEYS[1])
  return failed
end
if entry then
  redis.pcall('ZREM', KEYS[3], entry)
end
return token
