-- The next usual case: the first of those who wait wants the lock alone, and hears that it has it, with its token. The
-- one behind it hears that it is the first by now when this one confirms: nobody is to run before this one does.
-- With nothing that this case does not need: all that a script defines costs time in each of its calls.
local owner, short, lasting, length, rest = string.match(first or '', '^(%x+) x (%d+) (%d+) (%d+) (.*)$')
local heard
if owner then
  local inbox, info = string.sub(rest, 1, length), string.sub(rest, length + 2)
  -- First done, then told: it is believed.
  local token = mint(owner, info, lasting)
  if token.err then
    heard = 0
  else
    redis.call('SET', KEYS[1], owner, 'PX', short)
    local publish = string.find(inbox, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
    heard = redis.pcall(publish, inbox, 'passed ' .. owner .. ' ' .. token)
  end
  if type(heard) == 'number' and heard > 0 then
    return 1
  end
end
-- Who shares the lock, and who may be there though we may not publish, is for what follows.
if first and type(heard) ~= 'number' and redis.call('LPUSH', KEYS[3], first) == 1 then
  redis.call('PEXPIRE', KEYS[3], 5000)
end
