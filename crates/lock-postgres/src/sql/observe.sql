-- Registers an inbox, which is notified of other holders until its listener ends.
CREATE OR REPLACE FUNCTION observe(p_name text, p_inbox text, p_listener int, p_key text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
DECLARE
  l lock;
BEGIN
  IF p_inbox IS NULL THEN
    PERFORM refuse('the inbox');
  END IF;
  PERFORM check_inbox(p_inbox, p_listener, p_key, 16);
  IF NOT hears(p_inbox, p_listener) THEN
    RETURN 'unheard';
  END IF;
  IF EXISTS (SELECT FROM lock WHERE name = p_name) OR add_name(p_name) THEN
    SELECT * INTO l FROM lock WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
  END IF;
  IF l.name IS NULL THEN
    RETURN 'locked';
  END IF;
  PERFORM commit_by('off');
  INSERT INTO observer VALUES (p_name, p_inbox, p_key, p_listener) ON CONFLICT (name, inbox, key) DO UPDATE SET listener = p_listener;
  UPDATE lock SET observed = true WHERE name = p_name AND NOT observed;
  RETURN 'observed';
END
$$;

-- Ends that.
CREATE OR REPLACE FUNCTION unobserve(p_name text, p_inbox text, p_key text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET lock_timeout = '1s' AS $$
BEGIN
  PERFORM FROM lock WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND AND EXISTS (SELECT FROM lock WHERE name = p_name) THEN
    RETURN 'locked';
  END IF;
  PERFORM commit_by('off');
  DELETE FROM observer WHERE name = p_name AND inbox = p_inbox AND key = p_key;
  UPDATE lock SET observed = false WHERE name = p_name AND NOT EXISTS (SELECT FROM observer o WHERE o.name = p_name);
  RETURN 'done';
END
$$;
