-- One installation at a time, also with other schemas.
SELECT pg_advisory_xact_lock(hashtextextended('polylock install', 0));
SELECT set_config('client_min_messages', 'warning', true);
-- A function may call one that comes after it.
SELECT set_config('check_function_bodies', 'off', true);
-- A right to create schemas is needed only where this one is missing. Who may use it is up to its owner from then on.
DO $$
BEGIN
  IF to_regnamespace(quote_ident(@name@)) IS NULL THEN
    CREATE SCHEMA @schema@;
    GRANT USAGE ON SCHEMA @schema@ TO PUBLIC;
  END IF;
END
$$;
-- The functions keep this path: nothing that a caller has defined is in their way. They scan no table either: a plan that was made
-- while there were few names, or many dead rows, would be kept when that has changed. Where no index helps, a plan looks dear then, and
-- the server would compile it at each call: so there is no JIT.
SELECT set_config('search_path', @path@, true);
