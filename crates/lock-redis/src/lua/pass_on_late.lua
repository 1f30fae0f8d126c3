-- The same with a token that is not from the clock.
if owner and not delivered and pass_on(mint) then
  return 1
end
-- Puts back a waiter that can share the lock, or that could not be notified for want of a right: release.lua below
-- handles it.
if first and type(delivered) ~= 'number' and redis.call('LPUSH', KEYS[3], first) == 1 then
  redis.call('PEXPIRE', KEYS[3], 5000)
end
