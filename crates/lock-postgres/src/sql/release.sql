-- Releases what an owner has: the lock, its share of it, or its queue entry. Hands the lock over to the next waiters.
CREATE OR REPLACE FUNCTION release(p_name text, p_owner uuid, p_sync text, OUT status text, OUT tell boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_held boolean;
  v_left boolean;
  l lock;
BEGIN
  IF p_owner IS NULL THEN
    PERFORM refuse('a null owner');
  END IF;
  -- The common case: nobody is to be notified.
  UPDATE lock f SET owner = NULL
  WHERE f.name = (
    SELECT k.name FROM lock k WHERE k.name = p_name AND k.owner = p_owner AND NOT k.queued AND NOT k.observed
    FOR NO KEY UPDATE SKIP LOCKED)
  RETURNING (SELECT e.expires_at > v_now FROM lease e WHERE e.name = p_name) INTO v_held;
  IF FOUND THEN
    -- A crash that undoes it leaves a lock that ends with its lease, and no later grant.
    p_sync := set_config('synchronous_commit', 'off', true);
    status := CASE WHEN v_held THEN 'released' ELSE 'lost' END;
    RETURN;
  END IF;

  l := enter(p_name, v_now);
  IF l.name IS NULL THEN
    status := CASE WHEN EXISTS (SELECT FROM lock WHERE name = p_name) THEN 'locked' ELSE 'lost' END;
    RETURN;
  END IF;
  v_held := l.owner IS NOT DISTINCT FROM p_owner;
  IF v_held THEN
    IF NOT lock_lease(p_name) THEN
      status := 'locked';
      RETURN;
    END IF;
    UPDATE lock SET owner = NULL WHERE name = p_name;
  ELSIF l.shared <> 0 THEN
    DELETE FROM sharer WHERE name = p_name AND owner = (
      SELECT s.owner FROM sharer s WHERE s.name = p_name AND s.owner = p_owner FOR UPDATE SKIP LOCKED);
    v_held := FOUND;
    IF EXISTS (SELECT FROM sharer WHERE name = p_name AND owner = p_owner) THEN
      status := 'locked';
      RETURN;
    END IF;
    PERFORM settle(p_name);
  END IF;
  DELETE FROM waiter WHERE name = p_name AND owner = p_owner;
  v_left := FOUND;
  PERFORM commit_by(p_sync);
  IF v_held AND l.observed THEN
    tell := has_observers(p_name);
  END IF;
  IF v_held OR v_left OR l.owner IS NULL THEN
    tell := (SELECT a.tell FROM advance(p_name, NULL, v_now) a) OR coalesce(tell, false);
  END IF;
  IF NOT v_held THEN
    -- Perhaps it is repeated, as its client has gone before the answer, and has told nobody.
    tell := coalesce(tell, false) OR EXISTS (SELECT FROM lease e JOIN lock k USING (name, owner) WHERE e.name = p_name AND e.handed IS NOT NULL)
      OR EXISTS (SELECT FROM sharer s WHERE s.name = p_name AND s.handed IS NOT NULL);
  END IF;
  status := CASE WHEN v_held THEN 'released' ELSE 'lost' END;
END
$$;

-- Hands the lock over from an exclusive holder to another owner of the same process.
CREATE OR REPLACE FUNCTION hand_over(p_name text, p_owner uuid, p_next uuid, p_ttl bigint, p_info text, p_sync text,
  OUT status text, OUT token bigint, OUT tell boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_observed boolean;
BEGIN
  IF p_next IS NULL OR p_ttl IS NULL OR p_ttl NOT BETWEEN 1 AND 400 * 86400000::bigint OR octet_length(p_info) > 16384 THEN
    PERFORM refuse('the ttl or the info');
  END IF;
  WITH mine AS (
    SELECT f.name, @mint@ AS minted FROM lock f JOIN lease e USING (name, owner)
    WHERE f.name = p_name AND f.owner = p_owner AND e.expires_at > v_now
    FOR NO KEY UPDATE SKIP LOCKED
  ), leased AS (
    UPDATE lease e SET owner = p_next, expires_at = v_now + p_ttl * interval '1 ms', handed = NULL FROM mine WHERE e.name = mine.name
  )
  UPDATE lock g SET owner = p_next, token = mine.minted, last = mine.minted, since = v_now, info = p_info
  FROM mine WHERE g.name = mine.name RETURNING g.token, g.observed INTO token, v_observed;
  IF NOT FOUND THEN
    status := CASE WHEN holds(p_name, p_owner) THEN 'locked' ELSE 'lost' END;
    RETURN;
  END IF;
  PERFORM commit_by(p_sync);
  -- Else it would wait for what it has.
  DELETE FROM waiter WHERE name = p_name AND owner = p_next;
  tell := v_observed AND has_observers(p_name);
  status := 'granted';
END
$$;
