-- The value of the lock: "owner token since info" of an exclusive holder, or a marker for a shared lock (see lock.lua). False
-- if the lock is free, an error if the key has another type. Every change of the lock updates it.
local value = redis.pcall('GET', KEYS[1])
