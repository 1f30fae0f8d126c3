-- The next usual case: the first of those who wait wants the lock alone, and hears that it has it, with its token. The
-- one behind it hears that it is the first by now when this one confirms: nobody is to run before this one does.
-- With nothing that this case does not need: all that a script defines costs time in each of its calls.
local owner, short, lasting, length, rest = string.match(first or '', '^(%x+) x (%d+) (%d+) (%d+) (.*)$')
local heard

-- Says whether it is passed on, with the token of this mint; `heard` has what came of it.
local function pass_on(mint)
  local inbox, info = string.sub(rest, 1, length), string.sub(rest, length + 2)
  -- First done, then told: it is believed.
  local token = mint(owner, info, lasting)
  if not token then
    return false
  end
  heard = 0
  if not token.err then
    redis.call('SET', KEYS[1], owner, 'PX', short)
    local publish = string.find(inbox, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
    heard = redis.pcall(publish, inbox, 'passed ' .. owner .. ' ' .. token .. ' ' .. KEYS[1])
    if publish == 'PUBLISH' and type(heard) == 'number' and heard > 0 then
      -- Some may listen to patterns.
      local listeners = redis.pcall('PUBSUB', 'NUMSUB', inbox)
      heard = listeners.err and heard or listeners[2]
    end
  end
  return type(heard) == 'number' and heard > 0
end

if owner and pass_on(mint_by_clock) then
  return 1
end
