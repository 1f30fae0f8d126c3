-- The common case first: an exclusive holder.
if value == ARGV[1] then
  -- The lock last: if a right is missing, it is unchanged.
  local fence_ttl, left = ARGV[3] or '604800000', redis.call('PTTL', KEYS[2])
  if left ~= -1 and left < tonumber(fence_ttl) then
    redis.call('PEXPIRE', KEYS[2], fence_ttl)
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if #KEYS == 2 then
  return 0
end
