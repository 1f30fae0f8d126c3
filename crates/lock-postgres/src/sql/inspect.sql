-- The transaction that has the row of a lock: one that is fenced, or a request. It may see the age only of its own transactions.
CREATE OR REPLACE FUNCTION blocker(p_name text) RETURNS TABLE (pid int, application_name text, open_ms bigint)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
SELECT b.pid, b.application_name, b.open_ms FROM lock l, blocker_of(l.xmax) b WHERE l.name = p_name
-- A name without a row waits for those that are being added.
UNION ALL SELECT b.pid, b.application_name, b.open_ms FROM gate g, blocker_of(g.xmax) b
WHERE g.id = hashtext(p_name) & 1023 AND NOT EXISTS (SELECT FROM lock l WHERE l.name = p_name)
$$;

-- The open transaction with this id.
CREATE OR REPLACE FUNCTION blocker_of(p_transaction xid) RETURNS TABLE (pid int, application_name text, open_ms bigint)
LANGUAGE sql SET search_path FROM CURRENT AS $$
SELECT k.pid, a.application_name, (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint
FROM pg_locks k CROSS JOIN pg_stat_get_activity(k.pid) a
WHERE k.locktype = 'transactionid' AND k.transactionid = p_transaction AND k.granted AND k.mode = 'ExclusiveLock' AND k.pid IS NOT NULL
-- A prepared one belongs to no process.
UNION ALL SELECT 0, x.gid, (extract(epoch FROM clock_timestamp() - x.prepared) * 1000)::bigint
FROM pg_prepared_xacts x WHERE x.transaction = p_transaction
$$;

-- The lock, its holders, its first 100 waiters, and the transaction that has its row.
CREATE OR REPLACE FUNCTION inspect(p_name text) RETURNS TABLE (
  kind text, owner text, mode int, token bigint, since bigint, remaining bigint, info text, pid int)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
SELECT 'lock', NULL, (SELECT count(*) FROM waiter w WHERE w.name = p_name)::int, l.last, NULL::bigint, NULL::bigint, NULL, NULL::int
FROM lock l WHERE l.name = p_name
UNION ALL
-- Who knows the id of an owner can do what it can: others see its digest.
SELECT 'holder', left(encode(sha256(uuid_send(h.owner)), 'hex'), 32), h.mode, h.token, (extract(epoch FROM h.since) * 1000000)::bigint,
  (extract(epoch FROM h.expires_at - clock_timestamp()) * 1000)::bigint, h.info, NULL
FROM (SELECT l.owner, 0 AS mode, l.token, l.since, e.expires_at, l.info FROM lock l JOIN lease e USING (name, owner) WHERE l.name = p_name
  UNION ALL SELECT s.owner, s.mode, s.token, s.since, s.expires_at, s.info FROM sharer s WHERE s.name = p_name) AS h
WHERE h.expires_at > clock_timestamp()
UNION ALL
(SELECT 'waiter', left(encode(sha256(uuid_send(w.owner)), 'hex'), 32), w.mode, NULL, (extract(epoch FROM w.since) * 1000000)::bigint, NULL, w.info, w.listener
FROM waiter w WHERE w.name = p_name ORDER BY w.seq LIMIT 100)
UNION ALL
SELECT 'fence', NULL, NULL, NULL, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - b.open_ms * 1000, NULL, b.application_name, b.pid FROM blocker(p_name) b
$$;

-- The names with this prefix that are held or waited for, in order.
CREATE OR REPLACE FUNCTION list(p_prefix text, p_at_most int) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
SELECT l.name FROM lock l
-- Beyond the last name with this prefix, as names have at most 256 characters of four bytes.
WHERE l.name >= p_prefix AND starts_with(l.name, p_prefix)
  AND (getdatabaseencoding() <> 'UTF8'
    OR l.name <= p_prefix || repeat(chr(CASE getdatabaseencoding() WHEN 'UTF8' THEN 1114111 ELSE 127 END), 256))
  AND (l.queued
    OR l.owner IS NOT NULL AND EXISTS (SELECT FROM lease e WHERE e.name = l.name AND e.owner = l.owner AND e.expires_at > clock_timestamp())
    OR l.shared <> 0 AND EXISTS (SELECT FROM sharer s WHERE s.name = l.name AND s.expires_at > clock_timestamp()))
ORDER BY l.name LIMIT p_at_most
$$;

-- What endangers locks, as a JSON object.
CREATE OR REPLACE FUNCTION doctor() RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
SELECT json_build_object(
  'schema_version', (SELECT version FROM meta),
  'server_version_num', current_setting('server_version_num')::int,
  'standby', pg_is_in_recovery(),
  'synchronous_commit', current_setting('synchronous_commit'),
  'fsync', current_setting('fsync')::boolean,
  'full_page_writes', current_setting('full_page_writes')::boolean,
  'synchronous_standby_names', current_setting('synchronous_standby_names'),
  'standbys', (SELECT count(*) FROM pg_stat_get_wal_senders()),
  -- Null without the right to know.
  'sync_standbys', (SELECT CASE WHEN count(*) = count(sync_state) THEN count(*) FILTER (WHERE sync_state <> 'async') END
    FROM pg_stat_get_wal_senders()),
  'pid', pg_backend_pid(),
  'max_connections', current_setting('max_connections')::int,
  'connections', (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  'notify_queue', pg_notification_queue_usage(),
  'clock', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
  'names', (SELECT count(*) FROM lock),
  'dead_rows', (SELECT sum(n_dead_tup)::bigint FROM pg_stat_all_tables WHERE schemaname = current_schema),
  'waiters', (SELECT count(*) FROM waiter),
  -- From the open transactions on: few rows of many have one.
  'fences', (SELECT coalesce(json_agg(json_build_object(
    'name', l.name, 'pid', b.pid, 'application_name', b.application_name, 'open_ms', b.open_ms)), '[]')
    FROM (SELECT k.transactionid AS id FROM pg_locks k WHERE k.locktype = 'transactionid' AND k.granted) AS x
    JOIN lock l ON l.xmax = x.id CROSS JOIN LATERAL blocker_of(l.xmax) b),
  -- Whose snapshot keeps dead rows: the oldest transaction, slot or prepared transaction.
  'oldest', (SELECT json_build_object('who', o.who, 'transactions', age(o.id)) FROM (
    SELECT format('process %s (%s)', a.pid, a.application_name), a.backend_xmin
    FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()
    UNION ALL SELECT format('replication slot %s', r.slot_name), v.id
    FROM pg_replication_slots r CROSS JOIN LATERAL (VALUES (r.xmin), (r.catalog_xmin)) AS v(id) WHERE v.id IS NOT NULL
    UNION ALL SELECT format('prepared transaction %s', x.gid), x.transaction FROM pg_prepared_xacts x
  ) AS o(who, id) ORDER BY age(o.id) DESC LIMIT 1)
)::text
$$;
