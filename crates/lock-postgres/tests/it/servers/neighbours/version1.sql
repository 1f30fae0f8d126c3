-- The schema of version 1, as it was installed.
SELECT pg_advisory_xact_lock(hashtextextended('polylock install', 0));
SELECT set_config('client_min_messages', 'warning', true);
SELECT set_config('check_function_bodies', 'off', true);
DO $$
BEGIN
  IF to_regnamespace(quote_ident('polylock')) IS NULL THEN
    CREATE SCHEMA "polylock";
    GRANT USAGE ON SCHEMA "polylock" TO PUBLIC;
  END IF;
END
$$;
SELECT set_config('search_path', '"polylock", pg_temp', true);
CREATE TABLE IF NOT EXISTS meta (
  version int NOT NULL,
  floor bigint NOT NULL DEFAULT 0
);
DO $$
BEGIN
  IF (SELECT version FROM meta) > 1 THEN
    RAISE EXCEPTION 'the schema % has version % of the locks, which is newer than 1', current_schema, (SELECT version FROM meta)
      USING ERRCODE = 'PL002', HINT = 'use a version of polylock that knows it; older ones work until the upgrade after that';
  END IF;
END
$$;
CREATE TABLE IF NOT EXISTS lock (
  name text COLLATE "C" PRIMARY KEY,
  owner uuid,
  token bigint NOT NULL DEFAULT 0,
  last bigint NOT NULL,
  fenced bigint NOT NULL DEFAULT 0,
  since timestamptz,
  info text,
  shared smallint NOT NULL DEFAULT 0,
  queued boolean NOT NULL DEFAULT false,
  observed boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS lease (
  name text COLLATE "C" PRIMARY KEY,
  owner uuid,
  expires_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS sharer (
  name text COLLATE "C",
  owner uuid,
  mode int NOT NULL,
  token bigint NOT NULL,
  since timestamptz NOT NULL,
  info text,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (name, owner)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS waiter (
  name text COLLATE "C",
  seq bigint GENERATED ALWAYS AS IDENTITY,
  owner uuid NOT NULL,
  mode int NOT NULL,
  grace bigint NOT NULL,
  inbox text,
  listener int,
  info text,
  since timestamptz NOT NULL,
  renewed timestamptz NOT NULL,
  PRIMARY KEY (name, seq)
) WITH (fillfactor = 70);
CREATE TABLE IF NOT EXISTS observer (
  name text COLLATE "C",
  inbox text,
  listener int NOT NULL,
  PRIMARY KEY (name, inbox)
);
CREATE OR REPLACE FUNCTION version() RETURNS int
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS 'SELECT version FROM meta';
CREATE OR REPLACE FUNCTION mint(p_last bigint, p_now timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS
'SELECT greatest(p_last + 16, (extract(epoch FROM p_now) * 1000000)::bigint) >> 4 << 4';
CREATE OR REPLACE FUNCTION hears(p_inbox text, p_listener int) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  RETURN EXISTS (SELECT FROM pg_stat_get_activity(p_listener) a WHERE a.application_name = 'polylock_' || p_inbox);
END
$$;
CREATE OR REPLACE FUNCTION commit_by(p_sync text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF p_sync IS NOT NULL THEN
    p_sync := set_config('synchronous_commit', p_sync, true);
  END IF;
END
$$;
CREATE OR REPLACE FUNCTION add_name(p_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_xact_lock(hashtextextended('polylock:' || p_name, 0)) THEN
    RETURN false;
  END IF;
  INSERT INTO lock (name, last) SELECT p_name, floor FROM meta ON CONFLICT DO NOTHING;
  INSERT INTO lease (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  RETURN true;
END
$$;
CREATE OR REPLACE FUNCTION lock_lease(p_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM lease WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
  RETURN FOUND;
END
$$;
CREATE OR REPLACE FUNCTION enter(p_name text, p_now timestamptz) RETURNS lock
LANGUAGE plpgsql AS $$
DECLARE
  l lock;
BEGIN
  SELECT * INTO l FROM lock WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND OR EXISTS (SELECT FROM lease e WHERE e.name = p_name AND e.owner = l.owner AND e.expires_at > p_now) THEN
    RETURN l;
  END IF;
  IF NOT lock_lease(p_name) THEN
    RETURN NULL;
  END IF;
  IF l.owner IS NOT NULL AND NOT EXISTS (SELECT FROM lease e WHERE e.name = p_name AND e.owner = l.owner AND e.expires_at > p_now) THEN
    l.owner := NULL;
    UPDATE lock SET owner = NULL WHERE name = p_name;
    UPDATE lease SET owner = NULL WHERE name = p_name;
  ELSIF l.shared <> 0 THEN
    DELETE FROM sharer WHERE name = p_name AND owner IN (
      SELECT s.owner FROM sharer s WHERE s.name = p_name AND s.expires_at <= p_now FOR NO KEY UPDATE SKIP LOCKED);
    l.shared := settle(p_name);
  END IF;
  RETURN l;
END
$$;
CREATE OR REPLACE FUNCTION settle(p_name text) RETURNS smallint
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE lock SET shared = 0 WHERE name = p_name AND NOT EXISTS (SELECT FROM sharer s WHERE s.name = p_name);
  RETURN (SELECT shared FROM lock WHERE name = p_name);
END
$$;
CREATE OR REPLACE FUNCTION has_room(p_name text, p_mode int) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT owner IS NULL AND (shared = 0 OR p_mode <> 0 AND shared = sign(p_mode)
      AND (p_mode < 0 OR p_mode > (SELECT count(*) FROM sharer s WHERE s.name = p_name)))
    FROM lock WHERE name = p_name);
END
$$;
CREATE OR REPLACE FUNCTION admit(p_name text, p_owner uuid, p_mode int, p_ttl bigint, p_info text, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_ends timestamptz := p_now + p_ttl * interval '1 ms';
  l lock;
BEGIN
  DELETE FROM waiter WHERE name = p_name AND owner = p_owner;
  UPDATE lock SET owner = CASE WHEN p_mode = 0 THEN p_owner END, shared = sign(p_mode), token = mint(last, p_now),
    last = mint(last, p_now), since = p_now, info = p_info, queued = EXISTS (SELECT FROM waiter w WHERE w.name = p_name)
  WHERE name = p_name RETURNING * INTO l;
  IF p_mode = 0 THEN
    UPDATE lease SET owner = p_owner, expires_at = v_ends WHERE name = p_name;
  ELSE
    INSERT INTO sharer VALUES (p_name, p_owner, p_mode, l.token, p_now, p_info, v_ends);
  END IF;
  IF l.observed THEN
    PERFORM notify_observers(p_name);
  END IF;
  RETURN l.token;
END
$$;
CREATE OR REPLACE FUNCTION advance(p_name text, p_me uuid, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  w waiter;
  v_passed int := 0;
BEGIN
  FOR w IN SELECT * FROM waiter WHERE name = p_name ORDER BY seq LOOP
    IF w.owner = p_me THEN
      RETURN true;
    ELSIF NOT (CASE WHEN w.inbox IS NULL THEN w.renewed > p_now - interval '5 s' ELSE hears(w.inbox, w.listener) END) THEN
      DELETE FROM waiter WHERE name = p_name AND seq = w.seq;
    ELSIF has_room(p_name, w.mode) THEN
      IF w.inbox IS NULL THEN
        RETURN false;
      END IF;
      PERFORM pg_notify('polylock_' || w.inbox, format('granted %s %s %s %s', replace(w.owner::text, '-', ''),
        admit(p_name, w.owner, w.mode, w.grace, w.info, clock_timestamp()), w.grace, p_name));
    ELSIF w.mode > 0 AND v_passed < 64 AND (SELECT shared FROM lock WHERE name = p_name) > 0 THEN
      v_passed := v_passed + 1;
    ELSE
      RETURN false;
    END IF;
  END LOOP;
  UPDATE lock SET queued = false WHERE name = p_name AND queued AND NOT EXISTS (SELECT FROM waiter b WHERE b.name = p_name);
  RETURN true;
END
$$;
CREATE OR REPLACE FUNCTION notify_observers(p_name text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  o observer;
BEGIN
  FOR o IN SELECT * FROM observer WHERE name = p_name LOOP
    IF hears(o.inbox, o.listener) THEN
      PERFORM pg_notify('polylock_' || o.inbox, 'changed ' || p_name);
    ELSE
      DELETE FROM observer WHERE name = p_name AND inbox = o.inbox;
    END IF;
  END LOOP;
  UPDATE lock SET observed = false WHERE name = p_name AND NOT EXISTS (SELECT FROM observer b WHERE b.name = p_name);
END
$$;
CREATE OR REPLACE FUNCTION ask(p_name text, p_owner uuid, p_mode int, p_ttl bigint, p_info text, p_sync text, p_grace bigint,
  p_inbox text, p_listener int, OUT status text, OUT token bigint, OUT ahead int, OUT ends_in bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ends timestamptz;
  v_is_new boolean := false;
  l lock;
BEGIN
  IF p_sync IS NOT NULL THEN
    p_sync := set_config('synchronous_commit', p_sync, true);
  END IF;
  IF p_mode = 0 THEN
    WITH free AS (
      SELECT f.name, mint(f.last, v_now) AS minted FROM lock f JOIN lease USING (name)
      WHERE f.name = p_name AND f.owner IS NULL AND f.shared = 0 AND NOT f.queued AND NOT f.observed
      FOR NO KEY UPDATE SKIP LOCKED
    ), leased AS (
      UPDATE lease e SET owner = p_owner, expires_at = v_now + p_ttl * interval '1 ms' FROM free WHERE e.name = free.name
    )
    UPDATE lock g SET owner = p_owner, token = free.minted, last = free.minted, since = v_now, info = p_info
    FROM free WHERE g.name = free.name RETURNING g.token INTO token;
    IF FOUND THEN
      status := 'granted';
      RETURN;
    END IF;
  END IF;
  SELECT * INTO l FROM lock WHERE name = p_name;
  v_is_new := NOT FOUND;
  SELECT expires_at INTO v_ends FROM lease e WHERE e.name = p_name AND e.owner = l.owner AND e.owner <> p_owner AND e.expires_at > v_now;
  IF FOUND THEN
    status := 'busy';
    ends_in := extract(epoch FROM v_ends - v_now) * 1000;
    ahead := -1;
    IF p_grace IS NULL THEN
      RETURN;
    END IF;
    SELECT (SELECT count(*) FROM waiter b WHERE b.name = p_name AND b.seq < w.seq) INTO ahead
    FROM waiter w WHERE w.name = p_name AND w.owner = p_owner AND w.inbox = p_inbox AND w.listener = p_listener;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  IF NOT v_is_new OR add_name(p_name) THEN
    l := enter(p_name, v_now);
  END IF;
  IF l.name IS NULL THEN
    status := 'locked';
    ends_in := NULL;
    RETURN;
  END IF;
  UPDATE lease e SET expires_at = v_now + p_ttl * interval '1 ms'
  WHERE l.owner = p_owner AND e.name = (SELECT k.name FROM lease k WHERE k.name = p_name FOR NO KEY UPDATE SKIP LOCKED);
  IF FOUND THEN
    status := 'granted';
    token := l.token;
    RETURN;
  ELSIF l.owner = p_owner THEN
    status := 'locked';
    RETURN;
  END IF;
  IF l.shared <> 0 THEN
    UPDATE sharer s SET expires_at = v_now + p_ttl * interval '1 ms'
    WHERE s.name = p_name AND s.owner = (SELECT k.owner FROM sharer k WHERE k.name = p_name AND k.owner = p_owner FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING s.token INTO token;
    IF FOUND THEN
      status := 'granted';
      RETURN;
    ELSIF EXISTS (SELECT FROM sharer s WHERE s.name = p_name AND s.owner = p_owner) THEN
      status := 'locked';
      RETURN;
    END IF;
  END IF;
  IF l.owner IS NULL AND advance(p_name, p_owner, v_now) AND has_room(p_name, p_mode) THEN
    token := admit(p_name, p_owner, p_mode, p_ttl, p_info, v_now);
    status := 'granted';
    PERFORM advance(p_name, NULL, v_now) WHERE p_mode <> 0;
    RETURN;
  END IF;
  status := 'busy';
  ahead := -1;
  SELECT coalesce(extract(epoch FROM CASE WHEN p_mode > 0 THEN min(t) ELSE max(t) END - v_now) * 1000, -1) INTO ends_in FROM (
    SELECT greatest(e.expires_at, v_now) FROM lease e JOIN lock k USING (name, owner) WHERE e.name = p_name
    UNION ALL SELECT greatest(s.expires_at, v_now) FROM sharer s WHERE s.name = p_name) AS ends(t);
  IF p_grace IS NULL THEN
    RETURN;
  END IF;
  IF l.owner IS NOT NULL THEN
    PERFORM commit_by('off');
  END IF;
  UPDATE waiter SET inbox = p_inbox, listener = p_listener, grace = p_grace, renewed = v_now WHERE name = p_name AND owner = p_owner;
  IF NOT FOUND THEN
    INSERT INTO waiter (name, owner, mode, grace, inbox, listener, info, since, renewed)
    VALUES (p_name, p_owner, p_mode, p_grace, p_inbox, p_listener, p_info, v_now, v_now);
    UPDATE lock SET queued = true WHERE name = p_name AND NOT queued;
  END IF;
  ahead := (SELECT count(*) FROM waiter b WHERE b.name = p_name
    AND b.seq < (SELECT w.seq FROM waiter w WHERE w.name = p_name AND w.owner = p_owner));
END
$$;
CREATE OR REPLACE FUNCTION release(p_name text, p_owner uuid, p_sync text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_held boolean;
  v_left boolean;
  l lock;
BEGIN
  UPDATE lock f SET owner = NULL
  WHERE f.name = (
    SELECT k.name FROM lock k WHERE k.name = p_name AND k.owner = p_owner AND NOT k.queued AND NOT k.observed
    FOR NO KEY UPDATE SKIP LOCKED)
  RETURNING (SELECT e.expires_at > v_now FROM lease e WHERE e.name = p_name) INTO v_held;
  IF FOUND THEN
    p_sync := set_config('synchronous_commit', 'off', true);
    RETURN CASE WHEN v_held THEN 'released' ELSE 'lost' END;
  END IF;
  l := enter(p_name, v_now);
  IF l.name IS NULL THEN
    RETURN CASE WHEN EXISTS (SELECT FROM lock WHERE name = p_name) THEN 'locked' ELSE 'lost' END;
  END IF;
  v_held := l.owner IS NOT DISTINCT FROM p_owner;
  IF v_held THEN
    IF NOT lock_lease(p_name) THEN
      RETURN 'locked';
    END IF;
    UPDATE lock SET owner = NULL WHERE name = p_name;
  ELSIF l.shared <> 0 THEN
    DELETE FROM sharer WHERE name = p_name AND owner = (
      SELECT s.owner FROM sharer s WHERE s.name = p_name AND s.owner = p_owner FOR UPDATE SKIP LOCKED);
    v_held := FOUND;
    IF EXISTS (SELECT FROM sharer WHERE name = p_name AND owner = p_owner) THEN
      RETURN 'locked';
    END IF;
    PERFORM settle(p_name);
  END IF;
  DELETE FROM waiter WHERE name = p_name AND owner = p_owner;
  v_left := FOUND;
  PERFORM commit_by(p_sync);
  IF v_held AND l.observed THEN
    PERFORM notify_observers(p_name);
  END IF;
  IF v_held OR v_left OR l.owner IS NULL THEN
    PERFORM advance(p_name, NULL, v_now);
  END IF;
  RETURN CASE WHEN v_held THEN 'released' ELSE 'lost' END;
END
$$;
CREATE OR REPLACE FUNCTION hand_over(p_name text, p_owner uuid, p_next uuid, p_ttl bigint, p_info text, p_sync text,
  OUT status text, OUT token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_observed boolean;
BEGIN
  WITH mine AS (
    SELECT f.name, mint(f.last, v_now) AS minted FROM lock f JOIN lease e USING (name, owner)
    WHERE f.name = p_name AND f.owner = p_owner AND e.expires_at > v_now
    FOR NO KEY UPDATE SKIP LOCKED
  ), leased AS (
    UPDATE lease e SET owner = p_next, expires_at = v_now + p_ttl * interval '1 ms' FROM mine WHERE e.name = mine.name
  )
  UPDATE lock g SET owner = p_next, token = mine.minted, last = mine.minted, since = v_now, info = p_info
  FROM mine WHERE g.name = mine.name RETURNING g.token, g.observed INTO token, v_observed;
  IF NOT FOUND THEN
    status := CASE WHEN holds(p_name, p_owner) THEN 'locked' ELSE 'lost' END;
    RETURN;
  END IF;
  PERFORM commit_by(p_sync);
  PERFORM notify_observers(p_name) WHERE v_observed;
  status := 'granted';
END
$$;
CREATE OR REPLACE FUNCTION holds(p_name text, p_owner uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
  RETURN EXISTS (SELECT FROM lock l JOIN lease e USING (name, owner)
      WHERE l.name = p_name AND l.owner = p_owner AND e.expires_at > clock_timestamp())
    OR EXISTS (SELECT FROM sharer WHERE name = p_name AND owner = p_owner AND expires_at > clock_timestamp());
END
$$;
CREATE OR REPLACE FUNCTION extend(p_names text[], p_owners uuid[], p_ttls bigint[], p_sync text) RETURNS int[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off
  SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_answers int[];
BEGIN
  PERFORM commit_by(p_sync);
  WITH asked AS (
    SELECT * FROM unnest(p_names, p_owners, p_ttls) WITH ORDINALITY AS a(name, owner, ttl, nr)
  ), mine AS (
    SELECT a.nr, a.ttl, own.name FROM asked a CROSS JOIN LATERAL (
      SELECT e.name FROM lease e JOIN lock l USING (name, owner) WHERE e.name = a.name AND e.owner = a.owner AND e.expires_at > v_now
      FOR NO KEY UPDATE OF e SKIP LOCKED) AS own
  ), extended AS (
    UPDATE lease e SET expires_at = clock_timestamp() + m.ttl * interval '1 ms' FROM mine m WHERE e.name = m.name RETURNING m.nr
  ), shares AS (
    SELECT a.nr, a.ttl, own.* FROM asked a CROSS JOIN LATERAL (
      SELECT s.name, s.owner FROM sharer s WHERE s.name = a.name AND s.owner = a.owner AND s.expires_at > v_now
      FOR NO KEY UPDATE SKIP LOCKED) AS own
  ), shared AS (
    UPDATE sharer s SET expires_at = clock_timestamp() + h.ttl * interval '1 ms' FROM shares h
    WHERE s.name = h.name AND s.owner = h.owner RETURNING h.nr
  )
  SELECT array_agg((nr IN (SELECT nr FROM extended UNION ALL SELECT nr FROM shared))::int ORDER BY nr) INTO v_answers FROM asked;
  IF 0 = ANY (v_answers) THEN
    SELECT array_agg(CASE WHEN answer = 0 AND holds(name, owner) THEN -1 ELSE answer END ORDER BY nr) INTO v_answers
    FROM unnest(p_names, p_owners, v_answers) WITH ORDINALITY AS a(name, owner, answer, nr);
  END IF;
  RETURN v_answers;
END
$$;
CREATE OR REPLACE FUNCTION downgrade(p_name text, p_owner uuid, p_ttl bigint, p_sync text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  l lock := enter(p_name, v_now);
BEGIN
  IF l.owner IS DISTINCT FROM p_owner THEN
    RETURN CASE extend(ARRAY[p_name], ARRAY[p_owner], ARRAY[p_ttl], p_sync)
      WHEN '{1}' THEN CASE WHEN l.name IS NULL THEN 'locked' ELSE 'shared' END WHEN '{0}' THEN 'lost' ELSE 'locked' END;
  ELSIF NOT lock_lease(p_name) THEN
    RETURN 'locked';
  END IF;
  PERFORM commit_by(p_sync);
  UPDATE lock SET owner = NULL, shared = -1 WHERE name = p_name;
  UPDATE lease SET owner = NULL, expires_at = '-infinity' WHERE name = p_name;
  INSERT INTO sharer VALUES (p_name, p_owner, -1, l.token, l.since, l.info, clock_timestamp() + p_ttl * interval '1 ms');
  PERFORM advance(p_name, NULL, v_now);
  RETURN 'shared';
END
$$;
CREATE OR REPLACE FUNCTION raise(p_name text, p_owner uuid, p_floor bigint, p_sync text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF p_floor > 1::bigint << 62 THEN
    RAISE EXCEPTION 'no token is larger than %', 1::bigint << 62 USING ERRCODE = 'numeric_value_out_of_range';
  ELSIF NOT holds(p_name, p_owner) THEN
    RETURN 'lost';
  END IF;
  UPDATE lock SET last = greatest(last, p_floor)
  WHERE name = (SELECT l.name FROM lock l WHERE l.name = p_name FOR NO KEY UPDATE SKIP LOCKED);
  IF NOT FOUND THEN
    RETURN 'locked';
  END IF;
  PERFORM commit_by(p_sync);
  RETURN CASE WHEN holds(p_name, p_owner) THEN 'raised' ELSE 'lost' END;
END
$$;
CREATE OR REPLACE FUNCTION break_lock(p_name text, p_sync text) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS 'SELECT remove_holders(p_name, NULL, p_sync)';
CREATE OR REPLACE FUNCTION break_if(p_name text, p_token bigint, p_sync text) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS 'SELECT remove_holders(p_name, p_token, p_sync)';
CREATE OR REPLACE FUNCTION remove_holders(p_name text, p_token bigint, p_sync text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  l lock := enter(p_name, v_now);
  v_owners uuid[];
BEGIN
  IF l.name IS NULL THEN
    RETURN CASE WHEN EXISTS (SELECT FROM lock WHERE name = p_name) THEN 'locked' ELSE 'free' END;
  END IF;
  v_owners := ARRAY(SELECT s.owner FROM sharer s WHERE s.name = p_name AND (p_token IS NULL OR s.token >> 4 = p_token >> 4));
  IF l.owner IS NOT NULL AND (p_token IS NULL OR l.token >> 4 = p_token >> 4) THEN
    IF NOT lock_lease(p_name) THEN
      RETURN 'locked';
    END IF;
    UPDATE lease SET owner = NULL, expires_at = '-infinity' WHERE name = p_name;
  ELSIF v_owners = '{}' THEN
    RETURN 'free';
  ELSE
    IF cardinality(v_owners) > (SELECT count(*) FROM (
      SELECT FROM sharer WHERE name = p_name AND owner = ANY (v_owners) FOR UPDATE SKIP LOCKED) AS here) THEN
      RETURN 'locked';
    END IF;
    DELETE FROM sharer WHERE name = p_name AND owner = ANY (v_owners);
    PERFORM settle(p_name);
  END IF;
  PERFORM commit_by(p_sync);
  UPDATE lock SET owner = NULL, token = CASE WHEN p_token IS NULL OR token >> 4 = p_token >> 4 THEN 0 ELSE token END WHERE name = p_name;
  IF l.observed THEN
    PERFORM notify_observers(p_name);
  END IF;
  PERFORM advance(p_name, NULL, v_now);
  RETURN 'broken';
END
$$;
CREATE OR REPLACE FUNCTION fence(p_name text, p_token bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  l lock;
BEGIN
  UPDATE lock SET fenced = p_token WHERE name = p_name AND token > 0 AND token >> 4 = p_token >> 4 AND fenced <= p_token;
  IF FOUND THEN
    RETURN p_token;
  END IF;
  SELECT * INTO l FROM lock WHERE name = p_name;
  RAISE EXCEPTION 'the lock "%" is lost: token % is not of its last grant', p_name, p_token
    USING ERRCODE = 'PL001',
      DETAIL = CASE
        WHEN l.name IS NULL THEN 'The lock was not used for long: it has no last token.'
        WHEN l.token = 0 THEN format('The lock was broken; its last token is %s.', l.last)
        ELSE format('The last grant has the tokens %s to %s; the largest fenced token is %s.', l.token, l.token + 15, l.fenced) END,
      HINT = 'Roll back, acquire the lock again, and repeat the work with its new token.';
END
$$;
CREATE OR REPLACE FUNCTION blocker(p_name text) RETURNS TABLE (pid int, application_name text, open_ms bigint)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
SELECT b.pid, b.application_name, b.open_ms FROM lock l, blocker_of(l.xmax) b WHERE l.name = p_name
$$;
CREATE OR REPLACE FUNCTION blocker_of(p_transaction xid) RETURNS TABLE (pid int, application_name text, open_ms bigint)
LANGUAGE sql AS $$
SELECT k.pid, a.application_name, (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint
FROM pg_locks k CROSS JOIN pg_stat_get_activity(k.pid) a
WHERE k.locktype = 'transactionid' AND k.transactionid = p_transaction AND k.granted AND k.mode = 'ExclusiveLock'
$$;
CREATE OR REPLACE FUNCTION micros(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS 'SELECT (extract(epoch FROM p_time) * 1000000)::bigint';
CREATE OR REPLACE FUNCTION inspect(p_name text) RETURNS TABLE (
  kind text, owner text, mode int, token bigint, since bigint, remaining bigint, info text, pid int)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
SELECT 'lock', NULL, (SELECT count(*) FROM waiter w WHERE w.name = p_name)::int, l.last, NULL::bigint, NULL::bigint, NULL, NULL::int
FROM lock l WHERE l.name = p_name
UNION ALL
SELECT 'holder', replace(h.owner::text, '-', ''), h.mode, h.token, micros(h.since),
  (extract(epoch FROM h.expires_at - clock_timestamp()) * 1000)::bigint, h.info, NULL
FROM (SELECT l.owner, 0 AS mode, l.token, l.since, e.expires_at, l.info FROM lock l JOIN lease e USING (name, owner) WHERE l.name = p_name
  UNION ALL SELECT s.owner, s.mode, s.token, s.since, s.expires_at, s.info FROM sharer s WHERE s.name = p_name) AS h
WHERE h.expires_at > clock_timestamp()
UNION ALL
(SELECT 'waiter', replace(w.owner::text, '-', ''), w.mode, NULL, micros(w.since), NULL, w.info, w.listener
FROM waiter w WHERE w.name = p_name ORDER BY w.seq LIMIT 100)
UNION ALL
SELECT 'fence', NULL, NULL, NULL, micros(clock_timestamp()) - b.open_ms * 1000, NULL, b.application_name, b.pid FROM blocker(p_name) b
$$;
CREATE OR REPLACE FUNCTION list(p_prefix text, p_at_most int) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
SELECT l.name FROM lock l
WHERE l.name >= p_prefix AND starts_with(l.name, p_prefix)
  AND (getdatabaseencoding() <> 'UTF8'
    OR l.name <= p_prefix || repeat(chr(CASE getdatabaseencoding() WHEN 'UTF8' THEN 1114111 ELSE 127 END), 256))
  AND (l.queued
    OR EXISTS (SELECT FROM lease e WHERE e.name = l.name AND e.owner = l.owner AND e.expires_at > clock_timestamp())
    OR l.shared <> 0 AND EXISTS (SELECT FROM sharer s WHERE s.name = l.name AND s.expires_at > clock_timestamp()))
ORDER BY l.name LIMIT p_at_most
$$;
CREATE OR REPLACE FUNCTION doctor() RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
SELECT json_build_object(
  'schema_version', (SELECT version FROM meta),
  'server_version_num', current_setting('server_version_num')::int,
  'standby', pg_is_in_recovery(),
  'synchronous_commit', current_setting('synchronous_commit'),
  'fsync', current_setting('fsync')::boolean,
  'full_page_writes', current_setting('full_page_writes')::boolean,
  'synchronous_standby_names', current_setting('synchronous_standby_names'),
  'standbys', (SELECT count(*) FROM pg_stat_get_wal_senders()),
  'sync_standbys', (SELECT CASE WHEN count(*) = count(sync_state) THEN count(*) FILTER (WHERE sync_state <> 'async') END
    FROM pg_stat_get_wal_senders()),
  'pid', pg_backend_pid(),
  'max_connections', current_setting('max_connections')::int,
  'connections', (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  'notify_queue', pg_notification_queue_usage(),
  'clock', micros(clock_timestamp()),
  'names', (SELECT count(*) FROM lock),
  'dead_rows', (SELECT sum(n_dead_tup)::bigint FROM pg_stat_all_tables WHERE schemaname = current_schema),
  'waiters', (SELECT count(*) FROM waiter),
  'fences', (SELECT coalesce(json_agg(json_build_object(
    'name', l.name, 'pid', b.pid, 'application_name', b.application_name, 'open_ms', b.open_ms)), '[]')
    FROM lock l, blocker_of(l.xmax) b WHERE l.xmax <> '0')
)::text
$$;
CREATE OR REPLACE FUNCTION observe(p_name text, p_inbox text, p_listener int) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  l lock;
BEGIN
  IF EXISTS (SELECT FROM lock WHERE name = p_name) OR add_name(p_name) THEN
    SELECT * INTO l FROM lock WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
  END IF;
  IF l.name IS NULL THEN
    RETURN 'locked';
  END IF;
  PERFORM commit_by('off');
  INSERT INTO observer VALUES (p_name, p_inbox, p_listener) ON CONFLICT (name, inbox) DO UPDATE SET listener = p_listener;
  UPDATE lock SET observed = true WHERE name = p_name AND NOT observed;
  RETURN 'observed';
END
$$;
CREATE OR REPLACE FUNCTION unobserve(p_name text, p_inbox text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
  PERFORM FROM lock WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND AND EXISTS (SELECT FROM lock WHERE name = p_name) THEN
    RETURN 'locked';
  END IF;
  PERFORM commit_by('off');
  DELETE FROM observer WHERE name = p_name AND inbox = p_inbox;
  UPDATE lock SET observed = false WHERE name = p_name AND NOT EXISTS (SELECT FROM observer o WHERE o.name = p_name);
  RETURN 'done';
END
$$;
CREATE OR REPLACE FUNCTION sweep(p_after text, p_at_most int, p_idle bigint, p_sync text, OUT removed int, OUT next text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_names text[];
  v_name text;
  v_last bigint;
BEGIN
  removed := 0;
  next := p_after;
  IF NOT pg_try_advisory_xact_lock(hashtextextended('polylock sweep ' || current_schema, 0)) THEN
    RETURN;
  END IF;
  PERFORM commit_by(p_sync);
  v_names := ARRAY(SELECT name FROM lock WHERE name > p_after ORDER BY name LIMIT p_at_most);
  next := CASE WHEN cardinality(v_names) = p_at_most THEN v_names[p_at_most] END;
  FOR v_name IN SELECT name FROM lock WHERE name = ANY (v_names) AND (shared <> 0 OR queued OR observed) LOOP
    IF (enter(v_name, v_now)).name IS NOT NULL THEN
      PERFORM pg_stat_clear_snapshot();
      PERFORM advance(v_name, NULL, v_now);
      DELETE FROM observer o WHERE o.name = v_name AND NOT hears(o.inbox, o.listener);
      UPDATE lock SET observed = false WHERE name = v_name AND observed AND NOT EXISTS (SELECT FROM observer o WHERE o.name = v_name);
    END IF;
  END LOOP;
  WITH idle AS (
    SELECT l.name, l.last FROM lock l JOIN lease e USING (name)
    WHERE l.name = ANY (v_names) AND (l.owner IS NULL OR e.expires_at <= v_now) AND l.shared = 0 AND NOT l.queued AND NOT l.observed
      AND l.last + 16 < micros(v_now) - p_idle * 1000
    FOR UPDATE SKIP LOCKED
  ), names AS (
    DELETE FROM lock USING idle WHERE lock.name = idle.name
  ), leases AS (
    DELETE FROM lease USING idle WHERE lease.name = idle.name
  )
  SELECT count(*), max(last) INTO removed, v_last FROM idle;
  UPDATE meta SET floor = v_last WHERE v_last > floor;
END
$$;
INSERT INTO meta (version) SELECT 1 WHERE NOT EXISTS (SELECT FROM meta);
UPDATE meta SET version = 1;
