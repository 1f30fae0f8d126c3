-- The tables. No index is on a column that changes, and pages keep room, so that updates are HOT.
CREATE TABLE IF NOT EXISTS meta (
  -- The version of these tables and functions.
  version int NOT NULL,
  -- No token is smaller: the largest last token of the names that were removed.
  floor bigint NOT NULL DEFAULT 0
);
-- Not in version 1. A publication of all tables needs a key.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'meta'::regclass AND attname = 'one') THEN
    ALTER TABLE meta ADD COLUMN one boolean DEFAULT true CHECK (one) PRIMARY KEY;
  END IF;
END
$$;

-- One installation at a time.
LOCK TABLE meta IN SHARE ROW EXCLUSIVE MODE;

DO $$
DECLARE
  v_found int := (SELECT version FROM meta);
  v_schema regnamespace := quote_ident(current_schema);
  v_function regprocedure;
BEGIN
  IF v_found > @version@ THEN
    RAISE EXCEPTION 'the schema % has version % of the locks, which is newer than @version@', current_schema, v_found
      USING ERRCODE = 'PL002', HINT = 'use a version of polylock that knows it; older ones work until the upgrade after that';
  END IF;
  -- Who may call the functions for clients, and those for operators. In version 1 everybody might, unasked.
  PERFORM set_config('polylock.' || r.role, coalesce((
    SELECT string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END, ', ')
    FROM pg_proc p, aclexplode(p.proacl) a
    WHERE p.pronamespace = v_schema AND p.proname = r.function AND a.grantee <> p.proowner
      AND (a.grantee <> 0 OR v_found > 1)), ''), true)
  FROM (VALUES ('clients', 'ask'), ('operators', 'break_lock')) AS r(role, function);
  -- Its functions have other results. There is no version in a schema that was restored without its rows.
  IF coalesce(v_found, 1) = 1 THEN
    FOR v_function IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = v_schema LOOP
      EXECUTE format('DROP FUNCTION %s', v_function);
    END LOOP;
    -- Their processes register, or ask, again.
    DROP TABLE IF EXISTS observer;
    IF to_regclass('waiter') IS NOT NULL THEN
      DELETE FROM waiter WHERE inbox IS NOT NULL;
    END IF;
  END IF;
  -- Those that are created below have default rights.
  PERFORM set_config('polylock.functions', (SELECT coalesce(string_agg(p.oid::text, ','), '') FROM pg_proc p WHERE p.pronamespace = v_schema), true);
END
$$;

-- A name. Who changes a lock in any way but by a renewal locks this row first.
CREATE TABLE IF NOT EXISTS lock (
  name text COLLATE "C" PRIMARY KEY,
  -- The exclusive holder, unless its lease has expired.
  owner uuid,
  -- The block of the last grant, in any mode; 0 after it was broken.
  token bigint NOT NULL DEFAULT 0,
  -- The last token, or the floor to which it was raised.
  last bigint NOT NULL,
  -- The largest token that a transaction was fenced with.
  fenced bigint NOT NULL DEFAULT 0,
  since timestamptz,
  info text,
  -- What kind of sharers there may be: -1 readers, 1 permits, 0 none.
  shared smallint NOT NULL DEFAULT 0,
  -- Whether there may be waiters, or observers.
  queued boolean NOT NULL DEFAULT false,
  observed boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- The lease of the exclusive holder. Apart from the lock, so that a renewal does not wait for an open fenced transaction.
CREATE TABLE IF NOT EXISTS lease (
  name text COLLATE "C" PRIMARY KEY,
  owner uuid,
  expires_at timestamptz NOT NULL DEFAULT '-infinity',
  -- To which entry of the queue it was handed over, until its owner confirms that.
  handed text
) WITH (fillfactor = 50);

-- A reader or the holder of a permit, with its own lease.
CREATE TABLE IF NOT EXISTS sharer (
  name text COLLATE "C",
  owner uuid,
  mode int NOT NULL,
  token bigint NOT NULL,
  since timestamptz NOT NULL,
  info text,
  expires_at timestamptz NOT NULL,
  handed text,
  PRIMARY KEY (name, owner)
) WITH (fillfactor = 50);

-- The wait queue in order of arrival.
CREATE TABLE IF NOT EXISTS waiter (
  name text COLLATE "C",
  seq bigint GENERATED ALWAYS AS IDENTITY,
  owner uuid NOT NULL,
  mode int NOT NULL,
  -- For how many ms a hand-over lasts until it is confirmed.
  grace bigint NOT NULL,
  -- Its inbox, and the backend that listens to it; null for a waiter that polls.
  inbox text,
  listener int,
  info text,
  since timestamptz NOT NULL,
  -- When it last asked.
  renewed timestamptz NOT NULL,
  -- 16 digits by which its process knows it, and 32 that nobody else knows.
  key text,
  PRIMARY KEY (name, seq)
) WITH (fillfactor = 70);

-- Not in version 1.
DO $$
DECLARE
  v_table text;
  v_column text;
BEGIN
  FOR v_table, v_column IN VALUES ('lease', 'handed'), ('sharer', 'handed'), ('waiter', 'key') LOOP
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = v_table::regclass AND attname = v_column) THEN
      EXECUTE format('ALTER TABLE %I ADD COLUMN %I text', v_table, v_column);
    END IF;
  END LOOP;
END
$$;

-- A process that is notified of other holders.
CREATE TABLE IF NOT EXISTS observer (
  name text COLLATE "C",
  inbox text,
  -- 16 digits by which the process knows the lock.
  key text,
  listener int NOT NULL,
  PRIMARY KEY (name, inbox, key)
);

-- Who adds a name has the row of its hash: an insertion would wait for another one of that name.
CREATE TABLE IF NOT EXISTS gate (id int PRIMARY KEY);
INSERT INTO gate SELECT generate_series(0, 1023) ON CONFLICT DO NOTHING;

-- Null in a schema that was restored without its rows.
CREATE OR REPLACE FUNCTION version() RETURNS int
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS 'SELECT (SELECT version FROM meta)';
