-- The tombstone of the lock, false without one. KEYS: lock, last token, text. ARGV: four others, unit in ms.
local value = is_moved(redis.pcall('GET', KEYS[1]), ARGV[5]) and tombstone(KEYS[3])
