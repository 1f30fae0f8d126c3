-- The waiters in the queue.

-- Runs a command on the queue. A key of another type, as a neighbour may leave it by mistake, is no queue, and is removed: no
-- waiter can be in it, and it would fail whatever acquires, releases or breaks the lock.
local function queue_call(command, ...)
  local answer = redis.pcall(command, KEYS[3], ...)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then
    redis.call('DEL', KEYS[3])
  end
  return redis.call(command, KEYS[3], ...)
end

-- Parses a queue entry: owner, mode, grace period and ttl of the fence in ms, inbox, info, secret. Nothing if it is not valid.
local function parts(entry)
  local owner, secret, mode, grace, fence_ttl, length, rest =
    string.match(entry, '^(%x+):(%x+) (%w+) (%d+) (%d+) (%d+) (.*)$')
  if owner then
    return owner, mode, grace, fence_ttl, string.sub(rest, 1, length), string.sub(rest, length + 2), secret
  end
end

-- Whether a process listens to its inbox; true without the right to ask. An inbox with a hash tag is a sharded channel,
-- whose listeners only the node with its slot can count.
local function has_listeners(inbox)
  local kind = string.find(inbox, '{', 1, true) and 'SHARDNUMSUB' or 'NUMSUB'
  local listeners = redis.pcall('PUBSUB', kind, inbox)
  return listeners.err ~= nil or listeners[2] > 0
end

-- Notifies a process, and reports whether it listens: 'perhaps' without the right to publish. The count of PUBLISH includes
-- subscribers to patterns.
local function notify(inbox, what, owner, rest)
  local publish = string.find(inbox, '{', 1, true) and 'SPUBLISH' or 'PUBLISH'
  local delivered = redis.pcall(publish, inbox, what .. ' ' .. owner .. ' ' .. rest)
  if type(delivered) == 'number' then
    return delivered > 0 and (publish == 'SPUBLISH' or has_listeners(inbox))
  end
  return has_listeners(inbox) and 'perhaps'
end

-- Notifies the first waiter that it is the first, and when to ask, in ms; removes waiters whose process is dead. The same as
-- advance without room, for cases that need neither the clock nor tokens. `at` is the index of the first waiter, 0 without
-- a marker before it.
local function notify_first(ends_in, at)
  while true do
    local entry = queue_call('LINDEX', at or 0)
    local owner, _, _, _, inbox = parts(entry or '')
    if not entry or (owner and notify(inbox, 'next', owner, ends_in)) then
      return
    end
    queue_call('LREM', 1, entry)
  end
end
