-- Those who wait in the queue.

-- What an entry of the queue says; nothing when it is none: owner, mode, how long a grant is kept until it is confirmed
-- and how long the fence lasts, both in ms, inbox, info.
local function parts(entry)
  local owner, mode, short, lasting, length, rest =
    string.match(entry, '^(%x+) (%w+) (%d+) (%d+) (%d+) (.*)$')
  if owner then
    return owner, mode, short, lasting, string.sub(rest, 1, length), string.sub(rest, length + 2)
  end
end

-- Whether a process is there to hear; true where we may not ask. An inbox with a hash tag is a channel of the shard, of
-- which only the node that has the slot can count those who listen.
local function listens(inbox)
  local kind = string.find(inbox, '{', 1, true) and 'SHARDNUMSUB' or 'NUMSUB'
  local listeners = redis.pcall('PUBSUB', kind, inbox)
  return listeners.err ~= nil or listeners[2] > 0
end

-- Tells a process something, and says whether it is there to hear it: 'perhaps' where we may not publish. Of those who
-- heard it some may listen to patterns.
local function tell(inbox, what, owner, rest)
  local publish = string.find(inbox, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  local heard = redis.pcall(publish, inbox, what .. ' ' .. owner .. ' ' .. rest)
  if type(heard) == 'number' then
    return heard > 0 and (publish == 'SPUBLISH' or listens(inbox))
  end
  return listens(inbox) and 'perhaps'
end

-- Tells the first of those who wait that it is, and when it may look, in ms; passes over those whose process is gone.
-- As advance does while there is no room, but for the usual cases, which need neither the clock nor tokens. `at` is where
-- the waiters begin, 0 if nothing stands ahead of them.
local function call_first(ends_in, at)
  while true do
    local entry = redis.call('LINDEX', KEYS[3], at or 0)
    local owner, _, _, _, inbox = parts(entry or '')
    if not entry or (owner and tell(inbox, 'next', owner, ends_in)) then
      return
    end
    redis.call('LREM', KEYS[3], 1, entry)
  end
end
