-- The clock of the server, in microseconds since 1970. First, as it is refused where the user has no right to it: then
-- nothing has been written, or it was taken back; but for an entry of the queue, whose owner asks again.
local time = redis.call('TIME')
local micros = time[1] .. (#time[2] == 6 and time[2] or string.sub('00000' .. time[2], -6))
