-- Refuses the caller's transaction unless this token is of the last grant, and keeps everybody else from getting the lock until
-- the transaction ends. It is the only function that waits for a row: for a request, or for another transaction of the holder.
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
