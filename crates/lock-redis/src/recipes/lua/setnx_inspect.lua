-- Inspects the lock.
-- KEYS: lock, last token, fence, text of a tombstone. ARGV: -, owner or '', unit in ms, the time before which a lock has ended.
-- Returns {type, value, fence, waiters, whether the owner holds it, 'x', ms until the lock has ended or -1, {}, {}}. The type
-- of a lock that has ended is 'none'. The value of a lock that these scripts acquired is its owner, and that of one that has
-- moved its tombstone.
local kind = redis.call('TYPE', KEYS[1]).ok
local value = kind == 'string' and redis.call('GET', KEYS[1]) or ''
local time = time_of(value, ARGV[3])
local ends_in = time and time - ARGV[4] or -1
if is_moved(value, ARGV[3]) then
  value, ends_in = tombstone(KEYS[4]), redis.call('PTTL', KEYS[1])
end
if is_over(value, ARGV[3], ARGV[4]) then
  kind, value = 'none', ''
end
local fence, text = read_fence(), redis.pcall('GET', KEYS[3])
text = type(text) == 'string' and text or ''
if fence then
  text = table.concat({fence.token, fence.owner, fence.since, fence.info}, ' ')
  if value == fence.value then
    value = fence.owner
  end
end
return {kind, string.sub(value, 1, LONGEST_READ), string.sub(text, 1, LONGEST_READ), 0, holds(ARGV[2]) and 1 or 0, 'x', ends_in, {}, {}}
