-- Whether an owner holds the lock, exclusively or shared.
CREATE OR REPLACE FUNCTION holds(p_name text, p_owner uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
BEGIN
  RETURN EXISTS (SELECT FROM lock l JOIN lease e USING (name, owner)
      WHERE l.name = p_name AND l.owner = p_owner AND e.expires_at > clock_timestamp())
    OR EXISTS (SELECT FROM sharer WHERE name = p_name AND owner = p_owner AND expires_at > clock_timestamp());
END
$$;

-- Extends many leases. A longer one is left alone, unless it is to be shortened: a call that is executed late shortens no other. Never
-- acquires a lock, and locks no row of one. Returns for each lease 1, 0 if it is lost, or -1 while another transaction has its row.
CREATE OR REPLACE FUNCTION extend(p_names text[], p_owners uuid[], p_ttls bigint[], p_shortens boolean[], p_sync text) RETURNS int[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s'
  SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_answers int[];
BEGIN
  IF cardinality(p_names) > 1000 OR EXISTS (SELECT FROM unnest(p_ttls) t WHERE (t BETWEEN 1 AND 400 * 86400000::bigint) IS NOT TRUE) THEN
    PERFORM refuse('the ttl or the number of leases');
  END IF;
  PERFORM commit_by(p_sync);
  -- A lease counts from when its row is locked: one that is shortened slowly does not end before a later one that is as short.
  WITH asked AS (
    SELECT * FROM unnest(p_names, p_owners, p_ttls, p_shortens) WITH ORDINALITY AS a(name, owner, ttl, shortens, nr)
  ), mine AS (
    -- Row by row, each by its name, whatever the planner takes the table for.
    SELECT a.nr, a.ttl, a.shortens, own.name FROM asked a CROSS JOIN LATERAL (
      SELECT e.name FROM lease e JOIN lock l USING (name, owner) WHERE e.name = a.name AND e.owner = a.owner AND e.expires_at > v_now
      FOR NO KEY UPDATE OF e SKIP LOCKED) AS own
  ), extended AS (
    UPDATE lease e SET handed = NULL,
      expires_at = greatest(clock_timestamp() + m.ttl * interval '1 ms', CASE WHEN m.shortens THEN NULL ELSE e.expires_at END)
    FROM mine m WHERE e.name = m.name RETURNING m.nr
  ), shares AS (
    SELECT a.nr, a.ttl, a.shortens, own.* FROM asked a CROSS JOIN LATERAL (
      SELECT s.name, s.owner FROM sharer s WHERE s.name = a.name AND s.owner = a.owner AND s.expires_at > v_now
      FOR NO KEY UPDATE SKIP LOCKED) AS own
  ), shared AS (
    UPDATE sharer s SET handed = NULL,
      expires_at = greatest(clock_timestamp() + h.ttl * interval '1 ms', CASE WHEN h.shortens THEN NULL ELSE s.expires_at END)
    FROM shares h WHERE s.name = h.name AND s.owner = h.owner RETURNING h.nr
  )
  SELECT array_agg((nr IN (SELECT nr FROM extended UNION ALL SELECT nr FROM shared))::int ORDER BY nr) INTO v_answers FROM asked;
  IF 0 = ANY (v_answers) THEN
    SELECT array_agg(CASE WHEN answer = 0 AND holds(name, owner) THEN -1 ELSE answer END ORDER BY nr) INTO v_answers
    FROM unnest(p_names, p_owners, v_answers) WITH ORDINALITY AS a(name, owner, answer, nr);
  END IF;
  RETURN v_answers;
END
$$;

-- Makes an exclusive lock a shared one, and admits the readers at the head of the queue. When called again it extends the share. Shortens
-- no lease.
CREATE OR REPLACE FUNCTION downgrade(p_name text, p_owner uuid, p_ttl bigint, p_sync text, OUT status text, OUT tell boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ends timestamptz;
  l lock := enter(p_name, v_now);
BEGIN
  IF l.owner IS DISTINCT FROM p_owner THEN
    status := CASE extend(ARRAY[p_name], ARRAY[p_owner], ARRAY[p_ttl], ARRAY[false], p_sync)
      WHEN '{1}' THEN CASE WHEN l.name IS NULL THEN 'locked' ELSE 'shared' END WHEN '{0}' THEN 'lost' ELSE 'locked' END;
    RETURN;
  ELSIF p_ttl NOT BETWEEN 1 AND 400 * 86400000::bigint THEN
    PERFORM refuse('the ttl');
  ELSIF NOT lock_lease(p_name) THEN
    status := 'locked';
    RETURN;
  END IF;
  PERFORM commit_by(p_sync);
  UPDATE lock SET owner = NULL, shared = -1 WHERE name = p_name;
  SELECT greatest(expires_at, clock_timestamp() + p_ttl * interval '1 ms') INTO v_ends FROM lease WHERE name = p_name;
  UPDATE lease SET owner = NULL, expires_at = '-infinity' WHERE name = p_name;
  INSERT INTO sharer VALUES (p_name, p_owner, -1, l.token, l.since, l.info, v_ends)
  ON CONFLICT (name, owner) DO UPDATE SET expires_at = excluded.expires_at;
  tell := (SELECT a.tell FROM advance(p_name, NULL, v_now) a);
  status := 'shared';
END
$$;

-- Raises the last token to a floor if the owner holds the lock, so that later tokens are larger.
CREATE OR REPLACE FUNCTION raise(p_name text, p_owner uuid, p_floor bigint, p_sync text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
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
  -- Once more: until the row was locked, another owner may have got the lock.
  RETURN CASE WHEN holds(p_name, p_owner) THEN 'raised' ELSE 'lost' END;
END
$$;
