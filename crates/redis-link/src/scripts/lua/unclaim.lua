-- Deletes the note of a migration, if it is this one.
-- KEYS: claim. ARGV: the migration.
-- Returns 1 if it was deleted, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
