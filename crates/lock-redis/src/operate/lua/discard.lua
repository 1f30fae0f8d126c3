-- Deletes the keys of a trial.
-- KEYS: all of them. Returns how many there were.
return redis.call('DEL', unpack(KEYS))
