-- From the first statement on, nothing that others have made is in the way: names are of the system, or qualified.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
SELECT set_config('client_min_messages', 'warning', true);
-- A function may call one that comes after it.
SELECT set_config('check_function_bodies', 'off', true);
SELECT set_config('polylock.schema', @name@, true);
-- Whoever waits for a lock of a table keeps all others from it.
SELECT set_config('lock_timeout', '5s', true);

-- Creates the schema, or refuses one in which others may have left something: what runs there has the rights of whoever installs.
DO $$
DECLARE
  v_name text := current_setting('polylock.schema');
  v_schema oid;
  v_owner text;
  v_tables text[];
  v_others text;
  v_role text;
BEGIN
  SELECT n.oid, pg_get_userbyid(n.nspowner) INTO v_schema, v_owner FROM pg_namespace n WHERE n.nspname = v_name;
  IF NOT FOUND THEN
    EXECUTE format('CREATE SCHEMA %I', v_name);
    -- What default rights of the database have given away.
    FOR v_role IN SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
      FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = v_name AND a.grantee <> n.nspowner LOOP
      EXECUTE format('REVOKE ALL ON SCHEMA %I FROM %s CASCADE', v_name, v_role);
    END LOOP;
    RETURN;
  ELSIF v_owner <> current_user THEN
    RAISE EXCEPTION 'the schema "%" belongs to the role "%"', v_name, v_owner
      USING ERRCODE = 'insufficient_privilege', HINT = 'Install as that role if you trust it, or name another schema.';
  END IF;
  v_tables := ARRAY(SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = v_schema AND c.relkind IN ('r', 'p', 'v', 'm', 'f'));
  SELECT format('the %s %s', o.kind, o.name) INTO v_others FROM (
    SELECT 'table', t FROM unnest(v_tables) t
    WHERE t NOT IN ('meta', 'gate', 'lock', 'lease', 'sharer', 'waiter', 'observer')
      -- All of them, or it is that of somebody else.
      OR (SELECT count(*) FROM unnest(v_tables) u WHERE u <> 'gate') < 6
    UNION ALL SELECT 'table of another role', c.relname FROM pg_class c WHERE c.relnamespace = v_schema AND pg_get_userbyid(c.relowner) <> v_owner
    UNION ALL SELECT 'function', p.proname FROM pg_proc p WHERE p.pronamespace = v_schema AND p.proname NOT IN ('version', 'ask', 'release',
      'extend', 'holds', 'hand_over', 'downgrade', 'raise', 'observe', 'unobserve', 'hears', 'inspect', 'list', 'blocker', 'doctor', 'sweep',
      'fence', 'tell', 'told', 'break_lock', 'break_if', 'remove_holders', 'blocker_of', 'commit_by', 'refuse', 'check_inbox', 'add_name',
      'lock_lease', 'enter', 'settle', 'has_room', 'admit', 'advance', 'has_observers',
      -- Of version 1.
      'mint', 'micros', 'notify_observers')
    UNION ALL SELECT 'trigger', t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = v_schema AND NOT t.tgisinternal
    UNION ALL SELECT 'rule', w.rulename FROM pg_rewrite w JOIN pg_class c ON c.oid = w.ev_class WHERE c.relnamespace = v_schema
    UNION ALL SELECT 'policy', y.polname FROM pg_policy y JOIN pg_class c ON c.oid = y.polrelid WHERE c.relnamespace = v_schema
    UNION ALL SELECT 'function of another role', p.proname FROM pg_proc p WHERE p.pronamespace = v_schema AND pg_get_userbyid(p.proowner) <> v_owner
    UNION ALL SELECT 'type of another role', y.typname FROM pg_type y WHERE y.typnamespace = v_schema AND pg_get_userbyid(y.typowner) <> v_owner
    UNION ALL SELECT 'operator of another role', r.oprname FROM pg_operator r WHERE r.oprnamespace = v_schema AND pg_get_userbyid(r.oprowner) <> v_owner
    UNION ALL SELECT 'right to create for', CASE a.grantee WHEN 0 THEN 'everybody' ELSE pg_get_userbyid(a.grantee) END
    FROM pg_namespace n, aclexplode(n.nspacl) a
    WHERE n.oid = v_schema AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
  ) AS o(kind, name) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'the schema "%" is not of the locks alone: it has %', v_name, v_others
      USING ERRCODE = 'PL003', HINT = 'Name another schema, or remove that.';
  END IF;
END
$$;

-- The functions keep this path: nothing that a caller has defined is in their way. They scan no table either: a plan that was made
-- while there were few names, or many dead rows, would be kept when that has changed. Where no index helps, a plan looks dear then, and
-- the server would compile it at each call: so there is no JIT. And they wait for no lock of a table for long.
SELECT set_config('search_path', @path@, true);
