-- The next usual case: the first of those who wait wants the lock alone, and hears that it has it, with its token. The
-- one behind it hears that it is the first by now when this one confirms: nobody is to run before this one does.
local owner, mode, short, lasting, inbox, info = parts(first or '')
if mode == 'x' then
  redis.call('LPOP', KEYS[3])
  -- First done, then told: it is believed.
  local token = mint(owner, info, lasting)
  local heard = false
  if not token.err then
    redis.call('SET', KEYS[1], owner, 'PX', short)
    heard = tell(inbox, 'passed', owner, token)
  end
  if heard == true then
    return 1
  end
  if heard == 'perhaps' then
    redis.call('LPUSH', KEYS[3], first)
    -- It may have been the only one.
    redis.call('PEXPIRE', KEYS[3], 5000)
  end
end
