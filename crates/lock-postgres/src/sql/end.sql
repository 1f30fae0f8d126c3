-- The rights, also those of functions that are new in this version: nobody has one whom the owner has not given it.
SELECT set_config('polylock.' || role, concat_ws(', ', nullif(current_setting('polylock.' || role), ''), nullif(granted, '')), true)
FROM (VALUES ('clients', @clients@), ('operators', @operators@)) AS grants(role, granted);

DO $$
DECLARE
  v_clients text := current_setting('polylock.clients');
  v_operators text := current_setting('polylock.operators');
  v_of_clients text[] := ARRAY['version', 'ask', 'release', 'extend', 'holds', 'hand_over', 'downgrade', 'raise', 'observe', 'unobserve',
    'hears', 'inspect', 'list', 'blocker', 'doctor', 'sweep', 'fence', 'tell'];
  v_of_operators text[] := ARRAY['break_lock', 'break_if'];
  f record;
  v_right record;
  v_schema regnamespace := quote_ident(current_schema);
  v_to text;
BEGIN
  EXECUTE format('REVOKE ALL ON SCHEMA %s FROM PUBLIC', v_schema);
  -- The tables are for the functions alone, also where default rights of the database have given them away.
  FOR v_right IN SELECT DISTINCT c.oid::regclass AS relation, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role
    FROM pg_class c, aclexplode(c.relacl) a WHERE c.relnamespace = v_schema AND a.grantee <> c.relowner AND c.relkind IN ('r', 'S') LOOP
    EXECUTE format('REVOKE ALL ON %s %s FROM %s CASCADE', v_right.kind, v_right.relation, v_right.role);
  END LOOP;
  FOR f IN SELECT p.oid::regprocedure AS called, p.proname AS name, p.proacl AS acl, p.proowner AS owner,
      p.oid::text <> ALL (string_to_array(current_setting('polylock.functions'), ',')) AS is_new
    FROM pg_proc p WHERE p.pronamespace = v_schema LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.called);
    IF f.is_new OR f.name <> ALL (v_of_clients || v_of_operators) THEN
      FOR v_to IN SELECT DISTINCT pg_get_userbyid(a.grantee) FROM aclexplode(f.acl) a WHERE a.grantee NOT IN (0, f.owner) LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %I CASCADE', f.called, v_to);
      END LOOP;
    END IF;
    v_to := CASE WHEN f.name = ANY (v_of_clients) THEN concat_ws(', ', nullif(v_clients, ''), nullif(v_operators, ''))
      WHEN f.name = ANY (v_of_operators) THEN v_operators ELSE '' END;
    IF v_to <> '' THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', f.called, v_to);
      EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s', v_schema, v_to);
    END IF;
  END LOOP;
END
$$;

-- At last: who sees the version sees all of it.
INSERT INTO meta (version) SELECT @version@ WHERE NOT EXISTS (SELECT FROM meta);
UPDATE meta SET version = @version@;
