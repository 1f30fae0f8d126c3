-- The usual case, before anything else: one who holds it alone.
if value == ARGV[1] then
  -- The lock last: if a right is missing, nothing has happened to it.
  if redis.call('PTTL', KEYS[2]) ~= -1 then
    redis.call('PEXPIRE', KEYS[2], ARGV[3] or '604800000')
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if #KEYS == 2 then
  return 0
end
