-- The same with a token that is not of the clock.
if owner and not heard and pass_on(mint) then
  return 1
end
-- Who shares the lock, and who may be there though we may not publish, is for what follows.
if first and type(heard) ~= 'number' and redis.call('LPUSH', KEYS[3], first) == 1 then
  redis.call('PEXPIRE', KEYS[3], 5000)
end
