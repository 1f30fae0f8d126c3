-- At last: who sees the version sees all of it.
INSERT INTO meta (version) SELECT @version@ WHERE NOT EXISTS (SELECT FROM meta);
UPDATE meta SET version = @version@;
