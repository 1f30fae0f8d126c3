-- Looks at the next names after `p_after`. Ends what has expired, and removes names that nobody has used for `p_idle` ms and whose
-- last token is behind the clock.
CREATE OR REPLACE FUNCTION sweep(p_after text, p_at_most int, p_idle bigint, p_sync text, OUT removed int, OUT next text, OUT tell text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_names text[];
  v_name text;
  v_last bigint;
  v_idle bigint := least(greatest(p_idle, 0), 400 * 86400000::bigint);
BEGIN
  removed := 0;
  next := p_after;
  -- One at a time.
  PERFORM FROM meta FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  -- What it hands over is a grant like any other.
  PERFORM commit_by(p_sync);
  v_names := ARRAY(SELECT name FROM lock WHERE name > p_after ORDER BY name LIMIT least(p_at_most, 1000));
  next := CASE WHEN cardinality(v_names) = least(p_at_most, 1000) THEN v_names[cardinality(v_names)] END;
  FOR v_name IN SELECT name FROM lock WHERE name = ANY (v_names) AND (shared <> 0 OR queued OR observed) LOOP
    -- A name with which something is wrong keeps nobody from those behind it.
    BEGIN
      IF (enter(v_name, v_now)).name IS NOT NULL THEN
        -- Else the sessions would be those that there were at the first name.
        PERFORM pg_stat_clear_snapshot();
        IF (SELECT a.tell FROM advance(v_name, NULL, v_now) a) THEN
          tell := tell || v_name;
        END IF;
        PERFORM has_observers(v_name);
      END IF;
    EXCEPTION WHEN OTHERS THEN
      RAISE WARNING 'the lock "%" was not swept: %', v_name, SQLERRM;
    END;
  END LOOP;
  WITH idle AS (
    SELECT l.name, l.last FROM lock l JOIN lease e USING (name)
    WHERE l.name = ANY (v_names) AND (l.owner IS NULL OR e.expires_at <= v_now) AND l.shared = 0 AND NOT l.queued AND NOT l.observed
      AND l.last + 16 < (extract(epoch FROM v_now) * 1000000)::bigint - v_idle * 1000
    FOR UPDATE SKIP LOCKED
  ), names AS (
    DELETE FROM lock USING idle WHERE lock.name = idle.name
  ), leases AS (
    DELETE FROM lease USING idle WHERE lease.name = idle.name
  )
  SELECT count(*), max(last) INTO removed, v_last FROM idle;
  -- Also if the clock is set back, the next token of such a name is larger.
  UPDATE meta SET floor = v_last WHERE v_last > floor;
END
$$;
