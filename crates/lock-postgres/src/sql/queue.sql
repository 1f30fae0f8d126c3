-- What the requests below have in common. Not for callers.
--
-- A request notifies nobody: the commit of a notification has a lock of the whole server, while it waits for the disk and for standbys,
-- and fails when the queue of notifications is full. So it answers in `tell` that there is somebody, and the client calls `tell` for
-- the name: in a transaction of its own, as a proof is to leave the server only for what has been committed.

-- Whether the process of an inbox listens: the server's process that does so still exists. A pooler adds the host to its name.
CREATE OR REPLACE FUNCTION hears(p_inbox text, p_listener int) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  -- Without a number the server would return all of them.
  RETURN p_listener IS NOT NULL
    AND EXISTS (SELECT FROM pg_stat_get_activity(p_listener) a WHERE starts_with(a.application_name, 'polylock_' || p_inbox));
END
$$;

-- Sets what the commit of this transaction waits for.
CREATE OR REPLACE FUNCTION commit_by(p_sync text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF p_sync IS NOT NULL THEN
    p_sync := set_config('synchronous_commit', p_sync, true);
  END IF;
END
$$;

-- Refuses what no client sends: a value that is stored, and makes later requests of others fail.
CREATE OR REPLACE FUNCTION refuse(p_what text) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  RAISE EXCEPTION '% is out of bounds', p_what USING ERRCODE = 'invalid_parameter_value';
END
$$;

-- Refuses an inbox, or the key of an entry, that has another form.
CREATE OR REPLACE FUNCTION check_inbox(p_inbox text, p_listener int, p_key text, p_digits int) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF p_inbox IS NOT NULL AND (p_inbox !~ '^[0-9a-f]{32}$' OR p_listener IS NULL OR p_key IS NULL OR length(p_key) <> p_digits
    OR p_key !~ '^[0-9a-f]*$') THEN
    PERFORM refuse('the inbox');
  END IF;
END
$$;

-- Adds a name. False while another transaction adds it.
CREATE OR REPLACE FUNCTION add_name(p_name text) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF octet_length(p_name) NOT BETWEEN 1 AND 2048 THEN
    PERFORM refuse('the name');
  END IF;
  PERFORM FROM gate WHERE id = hashtext(p_name) & 1023 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO lock (name, last) SELECT p_name, floor FROM meta ON CONFLICT DO NOTHING;
  INSERT INTO lease (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  RETURN true;
END
$$;

-- Locks the row of a lease, after that of its lock. False while a renewal has it.
CREATE OR REPLACE FUNCTION lock_lease(p_name text) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM FROM lease WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
  RETURN FOUND;
END
$$;

-- Locks the row of a lock, removes holders whose lease has expired, and returns the row. The lease is locked too, unless an
-- exclusive holder has it. Null if there is no such row, or another transaction has it or a lease that matters.
CREATE OR REPLACE FUNCTION enter(p_name text, p_now timestamptz) RETURNS lock
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  l lock;
BEGIN
  SELECT * INTO l FROM lock WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND OR EXISTS (SELECT FROM lease e WHERE e.name = p_name AND e.owner = l.owner AND e.expires_at > p_now) THEN
    RETURN l;
  END IF;
  -- A renewal that is under way may have come in time. It has the row locked until it can be seen.
  IF NOT lock_lease(p_name) THEN
    RETURN NULL;
  END IF;
  IF l.owner IS NOT NULL AND NOT EXISTS (SELECT FROM lease e WHERE e.name = p_name AND e.owner = l.owner AND e.expires_at > p_now) THEN
    l.owner := NULL;
    UPDATE lock SET owner = NULL WHERE name = p_name;
    -- Else a renewal that read the lock before would still find its lease.
    UPDATE lease SET owner = NULL WHERE name = p_name;
  ELSIF l.shared <> 0 THEN
    DELETE FROM sharer WHERE name = p_name AND owner IN (
      SELECT s.owner FROM sharer s WHERE s.name = p_name AND s.expires_at <= p_now FOR NO KEY UPDATE SKIP LOCKED);
    l.shared := settle(p_name);
  END IF;
  RETURN l;
END
$$;

-- Ends a shared lock without sharers, and returns the kind of sharers that there are.
CREATE OR REPLACE FUNCTION settle(p_name text) RETURNS smallint
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE lock SET shared = 0 WHERE name = p_name AND NOT EXISTS (SELECT FROM sharer s WHERE s.name = p_name);
  RETURN (SELECT shared FROM lock WHERE name = p_name);
END
$$;

-- Whether a lock can be granted in this mode now.
CREATE OR REPLACE FUNCTION has_room(p_name text, p_mode int) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  RETURN (SELECT owner IS NULL AND (shared = 0 OR p_mode <> 0 AND shared = sign(p_mode)
      AND (p_mode < 0 OR p_mode > (SELECT count(*) FROM sharer s WHERE s.name = p_name)))
    FROM lock WHERE name = p_name);
END
$$;

-- Grants a lock; the caller has checked for room. Returns the token.
CREATE OR REPLACE FUNCTION admit(p_name text, p_owner uuid, p_mode int, p_ttl bigint, p_info text, p_now timestamptz,
  p_handed text, OUT token bigint, OUT tell boolean)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  v_now timestamptz := p_now;
  v_ends timestamptz := p_now + p_ttl * interval '1 ms';
  l lock;
BEGIN
  DELETE FROM waiter WHERE name = p_name AND owner = p_owner;
  UPDATE lock g SET owner = CASE WHEN p_mode = 0 THEN p_owner END, shared = sign(p_mode), token = @mint@,
    last = @mint@, since = p_now, info = p_info, queued = EXISTS (SELECT FROM waiter w WHERE w.name = p_name)
  WHERE g.name = p_name RETURNING * INTO l;
  IF p_mode = 0 THEN
    UPDATE lease SET owner = p_owner, expires_at = v_ends, handed = p_handed WHERE name = p_name;
  ELSE
    INSERT INTO sharer AS s VALUES (p_name, p_owner, p_mode, l.token, p_now, p_info, v_ends, p_handed)
    ON CONFLICT (name, owner) DO UPDATE SET (mode, token, since, info, expires_at, handed) = (p_mode, l.token, p_now, p_info, v_ends, p_handed);
  END IF;
  token := l.token;
  tell := p_handed IS NOT NULL OR l.observed AND has_observers(p_name);
END
$$;

-- Hands the lock over to waiters in order, while there is room, and removes dead ones. Those that wait for a smaller number of
-- permits let others pass. Returns whether nobody is before `p_me`, which the caller grants if there is room. After 500 it ends, as each
-- takes longer than the one before: the next of them that asks goes on.
CREATE OR REPLACE FUNCTION advance(p_name text, p_me uuid, p_now timestamptz, OUT is_first boolean, OUT tell boolean)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  w waiter;
  v_granted int := 0;
  v_passed int := 0;
BEGIN
  is_first := false;
  tell := false;
  FOR w IN SELECT * FROM waiter WHERE name = p_name ORDER BY seq LOOP
    IF w.owner = p_me THEN
      is_first := true;
      RETURN;
    -- An entry from the future is of a time before the clock was set back.
    ELSIF NOT (CASE WHEN w.inbox IS NULL THEN abs(extract(epoch FROM p_now - w.renewed)) < 5 ELSE hears(w.inbox, w.listener) END) THEN
      DELETE FROM waiter WHERE name = p_name AND seq = w.seq;
    ELSIF has_room(p_name, w.mode) THEN
      IF w.inbox IS NULL OR v_granted = 500 THEN
        -- Kept free until it asks.
        RETURN;
      END IF;
      v_granted := v_granted + 1;
      -- By the clock of now, with the row locked: not before this waiter asked, from when it counts its grace period.
      PERFORM admit(p_name, w.owner, w.mode, w.grace, w.info, clock_timestamp(), w.inbox || ':' || w.key);
      tell := true;
    ELSIF w.mode > 0 AND v_passed < 64 AND (SELECT shared FROM lock WHERE name = p_name) > 0 THEN
      v_passed := v_passed + 1;
    ELSE
      RETURN;
    END IF;
  END LOOP;
  UPDATE lock SET queued = false WHERE name = p_name AND queued AND NOT EXISTS (SELECT FROM waiter b WHERE b.name = p_name);
  is_first := true;
END
$$;

-- Whether a lock has observers. Removes dead ones.
CREATE OR REPLACE FUNCTION has_observers(p_name text) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM observer WHERE name = p_name AND NOT hears(inbox, listener);
  UPDATE lock SET observed = false WHERE name = p_name AND NOT EXISTS (SELECT FROM observer o WHERE o.name = p_name);
  RETURN (SELECT observed FROM lock WHERE name = p_name);
END
$$;

-- Whom to notify of what: waiters of grants that they have not confirmed, and observers. Everybody may listen to an inbox, and send
-- to it: so there is no name and no owner in it, and nobody else can make the proof of a grant.
CREATE OR REPLACE FUNCTION told(p_name text) RETURNS TABLE (inbox text, payload text)
LANGUAGE sql SET search_path FROM CURRENT AS $$
SELECT split_part(g.handed, ':', 1), concat_ws(':', 'granted', left(g.key, 16), g.token,
  encode(sha256(convert_to(g.token || ':' || substr(g.key, 17), 'UTF8')), 'hex'))
FROM (SELECT h.token, h.handed, split_part(h.handed, ':', 2) AS key FROM (
    SELECT l.token, e.handed FROM lock l JOIN lease e USING (name, owner) WHERE l.name = p_name
    UNION ALL SELECT s.token, s.handed FROM sharer s WHERE s.name = p_name) AS h
  WHERE h.handed IS NOT NULL) AS g
UNION ALL SELECT o.inbox, 'changed:' || o.key FROM observer o WHERE o.name = p_name
$$;

-- Notifies them. Its caller sees to it that the commit waits for neither the disk nor a standby.
CREATE OR REPLACE FUNCTION tell(p_names text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
BEGIN
  PERFORM pg_notify('polylock_' || t.inbox, t.payload) FROM unnest(p_names[1:1000]) AS n(name) CROSS JOIN LATERAL told(n.name) t;
END
$$;
