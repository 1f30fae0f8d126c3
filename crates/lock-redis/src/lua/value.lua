-- What the lock is: the owner id of the one who holds it alone, or a marker of those who share it; see lock.lua. False
-- when it is free, an error when the key is used for something else. Kept up to date by whatever changes it.
local value = redis.pcall('GET', KEYS[1])
