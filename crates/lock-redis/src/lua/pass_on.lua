-- The next usual case: the first of those who wait wants the lock alone, and hears that it has it, with its token.
local owner, mode, short, lasting, inbox, info = parts(waiting and waiting[1] or '')
if mode == 'x' then
  local second = waiting[2]
  redis.call('LPOP', KEYS[3])
  -- Redis writes first to whom something is told last: the next owner is not to come after the one behind it.
  while second do
    local other, _, _, _, its_inbox = parts(second)
    if other and tell(its_inbox, 'next', other, short) then
      break
    end
    redis.call('LPOP', KEYS[3])
    second = redis.call('LINDEX', KEYS[3], 0)
  end
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
    redis.call('LPUSH', KEYS[3], waiting[1])
    -- It may have been the only one.
    redis.call('PEXPIRE', KEYS[3], 5000)
  end
end
