-- Acquires the lock for an owner, confirms what it has, or queues it up. Idempotent for an owner, but the ttl counts from the
-- last call.
CREATE OR REPLACE FUNCTION ask(p_name text, p_owner uuid, p_mode int, p_ttl bigint, p_info text, p_sync text, p_grace bigint,
  p_inbox text, p_listener int, p_key text, OUT status text, OUT token bigint, OUT ahead int, OUT ends_in bigint, OUT tell boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ends timestamptz;
  v_is_new boolean := false;
  v_is_first boolean;
  v_more boolean;
  l lock;
BEGIN
  IF p_name IS NULL OR p_owner IS NULL OR p_mode IS NULL OR p_ttl IS NULL THEN
    PERFORM refuse('a null argument');
  ELSIF p_ttl NOT BETWEEN 1 AND 400 * 86400000::bigint OR p_grace NOT BETWEEN 1 AND 600000 OR p_mode < -1 OR octet_length(p_info) > 16384 THEN
    PERFORM refuse('the ttl, the mode or the info');
  END IF;
  IF p_sync IS NOT NULL THEN
    p_sync := set_config('synchronous_commit', p_sync, true);
  END IF;
  -- The common case: the name exists, and its lock is free.
  IF p_mode = 0 THEN
    WITH free AS (
      SELECT f.name, @mint@ AS minted FROM lock f JOIN lease USING (name)
      WHERE f.name = p_name AND f.owner IS NULL AND f.shared = 0 AND NOT f.queued AND NOT f.observed
      FOR NO KEY UPDATE SKIP LOCKED
    ), leased AS (
      UPDATE lease e SET owner = p_owner, expires_at = v_now + p_ttl * interval '1 ms', handed = NULL FROM free WHERE e.name = free.name
    )
    UPDATE lock g SET owner = p_owner, token = free.minted, last = free.minted, since = v_now, info = p_info
    FROM free WHERE g.name = free.name RETURNING g.token INTO token;
    IF FOUND THEN
      status := 'granted';
      RETURN;
    END IF;
  END IF;

  -- The next common cases only read: another owner has the lock, and this one does not wait, or is in the queue already.
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

  -- What it has already.
  UPDATE lease e SET expires_at = v_now + p_ttl * interval '1 ms', handed = NULL
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
    UPDATE sharer s SET expires_at = v_now + p_ttl * interval '1 ms', handed = NULL
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

  IF l.owner IS NULL THEN
    SELECT a.is_first, a.tell INTO v_is_first, tell FROM advance(p_name, p_owner, v_now) a;
    IF v_is_first AND has_room(p_name, p_mode) THEN
      SELECT a.token, a.tell INTO token, v_more FROM admit(p_name, p_owner, p_mode, p_ttl, p_info, v_now, NULL) a;
      tell := tell OR v_more;
      status := 'granted';
      IF p_mode <> 0 THEN
        -- Those behind it may have room as well.
        tell := (SELECT a.tell FROM advance(p_name, NULL, v_now) a) OR tell;
      END IF;
      RETURN;
    END IF;
  END IF;

  status := 'busy';
  ahead := -1;
  SELECT coalesce(extract(epoch FROM CASE WHEN p_mode > 0 AND l.shared > 0 THEN min(t) ELSE max(t) END - v_now) * 1000, -1) INTO ends_in FROM (
    SELECT greatest(e.expires_at, v_now) FROM lease e JOIN lock k USING (name, owner) WHERE e.name = p_name
    UNION ALL SELECT greatest(s.expires_at, v_now) FROM sharer s WHERE s.name = p_name) AS ends(t);
  IF p_grace IS NULL THEN
    RETURN;
  END IF;
  PERFORM check_inbox(p_inbox, p_listener, p_key, 48);
  IF p_inbox IS NULL THEN
    p_listener := NULL;
    p_key := NULL;
  END IF;
  -- A queue entry that is lost in a crash is made anew when its waiter asks again.
  IF l.owner IS NOT NULL THEN
    PERFORM commit_by('off');
  END IF;
  UPDATE waiter SET inbox = p_inbox, listener = p_listener, key = p_key, grace = p_grace, renewed = v_now WHERE name = p_name AND owner = p_owner;
  IF NOT FOUND THEN
    INSERT INTO waiter (name, owner, mode, grace, inbox, listener, key, info, since, renewed)
    VALUES (p_name, p_owner, p_mode, p_grace, p_inbox, p_listener, p_key, p_info, v_now, v_now);
    UPDATE lock SET queued = true WHERE name = p_name AND NOT queued;
  END IF;
  ahead := (SELECT count(*) FROM waiter b WHERE b.name = p_name
    AND b.seq < (SELECT w.seq FROM waiter w WHERE w.name = p_name AND w.owner = p_owner));
END
$$;
