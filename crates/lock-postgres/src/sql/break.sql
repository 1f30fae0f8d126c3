-- Removes the lock from all its holders up to this token, and hands it over. Their tokens fence no more. A call that is carried out late removes
-- no later holder.
CREATE OR REPLACE FUNCTION break_lock(p_name text, p_last bigint, p_sync text, OUT status text, OUT tell boolean)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS 'SELECT * FROM remove_holders(p_name, 0, p_last, p_sync)';

-- Removes the lock from the holder whose block has this token.
CREATE OR REPLACE FUNCTION break_if(p_name text, p_token bigint, p_sync text, OUT status text, OUT tell boolean)
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS 'SELECT * FROM remove_holders(p_name, p_token, p_token, p_sync)';

-- Removes the holders whose blocks have a token between these.
CREATE OR REPLACE FUNCTION remove_holders(p_name text, p_first bigint, p_last bigint, p_sync text, OUT status text, OUT tell boolean)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  l lock := enter(p_name, v_now);
  v_owners uuid[];
BEGIN
  IF l.name IS NULL THEN
    status := CASE WHEN EXISTS (SELECT FROM lock WHERE name = p_name) THEN 'locked' ELSE 'free' END;
    RETURN;
  END IF;
  v_owners := ARRAY(SELECT s.owner FROM sharer s WHERE s.name = p_name AND s.token >> 4 BETWEEN p_first >> 4 AND p_last >> 4);
  IF l.owner IS NOT NULL AND l.token >> 4 BETWEEN p_first >> 4 AND p_last >> 4 THEN
    IF NOT lock_lease(p_name) THEN
      status := 'locked';
      RETURN;
    END IF;
    UPDATE lease SET owner = NULL, expires_at = '-infinity' WHERE name = p_name;
  ELSIF v_owners = '{}' THEN
    status := 'free';
    RETURN;
  ELSE
    IF cardinality(v_owners) > (SELECT count(*) FROM (
      SELECT FROM sharer WHERE name = p_name AND owner = ANY (v_owners) FOR UPDATE SKIP LOCKED) AS here) THEN
      status := 'locked';
      RETURN;
    END IF;
    DELETE FROM sharer WHERE name = p_name AND owner = ANY (v_owners);
    PERFORM settle(p_name);
  END IF;
  PERFORM commit_by(p_sync);
  UPDATE lock SET owner = NULL, token = CASE WHEN token >> 4 BETWEEN p_first >> 4 AND p_last >> 4 THEN 0 ELSE token END WHERE name = p_name;
  IF l.observed THEN
    tell := has_observers(p_name);
  END IF;
  tell := (SELECT a.tell FROM advance(p_name, NULL, v_now) a) OR coalesce(tell, false);
  status := 'broken';
END
$$;
