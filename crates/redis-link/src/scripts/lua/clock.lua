-- The clock of the server, in microseconds since 1970. Read first: if the user has no right to TIME, the script fails
-- here, before any write but a queue entry, whose owner asks again.
local time = redis.call('TIME')
local micros = time[1] .. (#time[2] == 6 and time[2] or string.sub('00000' .. time[2], -6))
