-- The common case first: an exclusive holder.
if is_ours then
  -- The lock last: if a right is missing, it is unchanged. Also if nothing changes, as a following WAIT waits for this write.
  local fence_ttl = ARGV[3] or WEEK
  if redis.call('PTTL', KEYS[2]) < fence_ttl / 2 then
    redis.call('PEXPIRE', KEYS[2], fence_ttl)
  end
  if (ARGV[5] or '') ~= '' or redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end
if #KEYS == 2 then
  return 0
end
