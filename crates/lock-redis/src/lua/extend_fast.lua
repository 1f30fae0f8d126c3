-- The usual case, before anything else: one who holds it alone.
if value == ARGV[1] then
  -- The lock last: if a right is missing, nothing has happened to it.
  local lasting, left = ARGV[3] or '604800000', redis.call('PTTL', KEYS[2])
  if left ~= -1 and left < tonumber(lasting) then
    redis.call('PEXPIRE', KEYS[2], lasting)
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if #KEYS == 2 then
  return 0
end
