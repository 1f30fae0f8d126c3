//! A real MariaDB server, and what its users do to it.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::lookup::TestName;
use lock_core::{DoctorReport, ErrorKind, FindingLevel, Locks, Outcome, Password, Released, Result};
use lock_kv::MysqlConfig;
use lock_testkit::proxy::{Direction, FaultProxy, Protocol, Then};
use lock_testkit::{Certificates, MariadbServer, hand_over, is_renewed, queue_up, soon, take, until};
use sqlx::{Connection, Executor, MySqlConnection};
use tokio::runtime::Builder;

const PASSWORD: &str = MariadbServer::PASSWORD;

async fn open(url: &str) -> Result<Locks> {
    MysqlConfig::from_url(url)?.connect().await
}

async fn connect(url: &str) -> Locks {
    open(url).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The error of this kind, which has changed nothing, says what to do, and shows no secret.
async fn refused(url: &str, kind: ErrorKind, hint: &str) {
    let error = open(url).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.backend(), error.outcome()),
        (kind, "mysql", Outcome::NotApplied),
        "{error}"
    );
    assert!(error.hint().is_some_and(|found| found.contains(hint)), "{error}");
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error:?}");
}

/// How many sessions were begun, this one included.
async fn sessions(server: &MariadbServer) -> u64 {
    server
        .sql(
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'CONNECTIONS'",
        )
        .await
        .unwrap()
        .parse()
        .unwrap()
}

/// A session of root's, in the database.
async fn root(server: &MariadbServer) -> MySqlConnection {
    server.sql("GRANT ALL ON *.* TO admin IDENTIFIED BY 'admin'").await.unwrap();
    MySqlConnection::connect(&format!("mysql://admin:admin@{}/app", server.addr())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_tokens_outlive_a_restart() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    // Longer than the restart.
    let url = format!("{}?ttl=60s", server.url());
    let (one, other) = (connect(&url).await, connect(&url).await);
    let guard = take(&one, "a").await;
    let token = guard.token();
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "it is held");
    server.kill();
    server.start_again().await.unwrap();
    // The sessions of before are found out.
    assert_eq!(one.list("").await.unwrap().len(), 1);
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "it is held");
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert!(take(&other, "a").await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_the_lock_and_locks_are_renewed() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = take(&one, "a").await;
    is_renewed(&guard).await;
    let waiting = queue_up(&other, "a").await;
    let token = guard.token();
    assert!(hand_over(guard, waiting).await.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_whose_answer_is_lost_is_found_by_its_value() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Mysql).unwrap();
    let locks = connect(&server.url_at(proxy.addr())).await;
    // The statements of both kinds are prepared.
    take(&locks, "a").await.release().await.unwrap();
    for then in [Then::Reset, Then::Fin, Then::Hang] {
        let guard = take(&locks, "a").await;
        let token = guard.token();
        guard.release().await.unwrap();
        let fired = proxy.fired();
        // Of the row: its version is followed by its value.
        proxy.swallow_when(|request| request[4] == 0x17 && has(request, b"holders"), then);
        let guard = soon(locks.mutex("a").acquire()).await.unwrap();
        assert_eq!(proxy.fired() - fired, 1, "{then:?}");
        // Nothing was rolled back: it is the first that was written.
        assert!(guard.token() > token);
        guard.release().await.unwrap();
    }
    let guard = take(&locks, "new").await;
    proxy.swallow_when(|request| has(request, b"holders") && has(request, b"lock/newer"), Then::Reset);
    // What is created is found as well; that it exists is no refusal.
    proxy.swallow_when(|request| request[4] == 0x16, Then::Reset);
    take(&locks, "newer").await.release().await.unwrap();
    guard.release().await.unwrap();
}

/// Else both would have the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_that_was_lost_is_not_taken_for_that_of_another_client() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Mysql).unwrap();
    // No statement ends before its connection does.
    let patient = format!("{}?command_timeout=60s", server.url_at(proxy.addr()));
    let (locks, other) = (connect(&patient).await, connect(&server.url()).await);
    take(&locks, "a").await.release().await.unwrap();
    proxy.hold(Direction::ToServer);
    let mutex = locks.mutex("a");
    let lost = tokio::spawn(async move { mutex.try_acquire().await });
    until("it is asked for", async || proxy.queued(Direction::ToServer) > 0).await;
    let guard = take(&other, "a").await;
    // What was held is lost.
    proxy.rst();
    proxy.deliver();
    assert!(soon(lost).await.unwrap().unwrap().is_none(), "the other one has it");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    until("nothing is left", async || locks.list("").await.unwrap().is_empty()).await;
    assert!(take(&other, "a").await.is_valid());
}

/// As by a proxy that takes a lost connection for a reason to try again: the second copy is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_that_was_repeated_on_the_way_was_executed() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Mysql).unwrap();
    let locks = connect(&server.url_at(proxy.addr())).await;
    take(&locks, "a").await.release().await.unwrap();
    let guard = take(&locks, "a").await;
    proxy.repeat_when(|request| request[4] == 0x17 && has(request, b"holders"));
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert_eq!(proxy.fired(), 1);
}

fn has(request: &[u8], part: &[u8]) -> bool {
    request.windows(part.len()).any(|found| found == part)
}

/// Another statement could get its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_statement_is_not_answered_is_closed() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Mysql).unwrap();
    let locks = connect(&server.url_at(proxy.addr())).await;
    let guard = take(&locks, "a").await;
    let before = proxy.connections();
    proxy.swallow_when(|request| request[4] == 0x17, Then::Hang);
    soon(locks.inspect("a")).await.unwrap();
    assert_eq!(proxy.fired(), 1);
    until("it is closed", async || proxy.connections() <= before).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_others_have_locked_keeps_no_session_from_the_others() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let mut root = root(&server).await;
    // Time: the second has time for little more than the second that the server waits.
    for options in ["", "&command_timeout=3s"] {
        let locks = connect(&format!("{}?ttl=60s{options}", server.url())).await;
        let (one, other) = (take(&locks, "a").await, take(&locks, "b").await);
        let mut transaction = root.begin().await.unwrap();
        transaction.execute("SELECT * FROM polylock WHERE name = 'lock/a' LOCK IN SHARE MODE").await.unwrap();
        let before = sessions(&server).await;
        let error = soon(one.extend(Duration::from_secs(90))).await.unwrap_err();
        // The server has given up by itself.
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
        assert!(error.message().contains("has locked the row"), "{error}");
        other.extend(Duration::from_secs(90)).await.unwrap();
        assert_eq!(sessions(&server).await - before, 1, "no session was opened but the one that asks");
        transaction.rollback().await.unwrap();
        one.extend(Duration::from_secs(90)).await.unwrap();
        one.release().await.unwrap();
        other.release().await.unwrap();
    }
}

/// No turn, no row and no session is left to the others by one whose statement is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_statement_costs_its_own_session_alone() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Mysql).unwrap();
    let locks = connect(&server.url_at(proxy.addr())).await;
    let guards = join_all(["a", "b", "c", "d"].map(|name| take(&locks, name))).await;
    let before = proxy.connections();
    assert!(before > 1);
    let opened = sessions(&server).await;
    proxy.swallow_when(|request| request[4] == 0x17, Then::Hang);
    soon(locks.inspect("a")).await.unwrap();
    assert_eq!(proxy.fired(), 1);
    assert_eq!(sessions(&server).await - opened, 1, "no session was opened but the one that asks");
    until("it is closed", async || proxy.connections() == before - 1).await;
    join_all(guards.into_iter().map(|guard| async { guard.release().await.unwrap() })).await;
}

/// They would wait for each other, as they try one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_connects_writes_nothing_where_others_have_connected() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    connect(&server.url()).await.close().await.unwrap();
    let probe = "SELECT version, value FROM polylock";
    let written = server.sql(probe).await.unwrap();
    let url = server.url();
    for opened in join_all((0..30).map(|_| open(&url))).await {
        opened.unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(server.sql(probe).await.unwrap(), written);
}

/// Each would break the locks, or fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defaults_of_the_server_change_nothing() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let hostile = "SET GLOBAL autocommit = 0, tx_isolation = 'SERIALIZABLE', tx_read_only = 1, \
         default_storage_engine = 'MyISAM', sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES', \
         innodb_lock_wait_timeout = 1000, character_set_server = 'latin1', sql_safe_updates = 1, unique_checks = 0";
    server.sql(hostile).await.unwrap();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = take(&one, "ä").await;
    assert!(other.mutex("ä").try_acquire().await.unwrap().is_none(), "it is committed");
    let kept = server.sql("SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_NAME = 'polylock'").await;
    assert_eq!(kept.unwrap(), "InnoDB");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_need_a_password_rights_and_a_database() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let addr = server.addr();
    refused(&format!("mysql://me:x{PASSWORD}@{addr}/app"), ErrorKind::Denied, "check the user").await;
    refused(&format!("mysql://you:{PASSWORD}@{addr}/app"), ErrorKind::Denied, "check the user").await;
    server.sql("GRANT ALL ON other.* TO me").await.unwrap();
    refused(&format!("mysql://me:{PASSWORD}@{addr}/other"), ErrorKind::InvalidConfig, "make it").await;
    refused("mysql://me:x@127.0.0.1:1/app", ErrorKind::Unavailable, "the port").await;
    // Who reads alone: the table is there.
    take(&connect(&server.url()).await, "a").await.release().await.unwrap();
    let reader =
        format!("CREATE USER reader IDENTIFIED BY '{PASSWORD}'; GRANT SELECT ON app.polylock TO reader");
    server.sql(&reader).await.unwrap();
    let url = format!("mysql://reader:{PASSWORD}@{addr}/app");
    refused(&url, ErrorKind::Denied, "grant SELECT, INSERT and UPDATE").await;
    // These suffice.
    server.sql("GRANT INSERT, UPDATE ON app.polylock TO reader").await.unwrap();
    take(&connect(&url).await, "a").await.release().await.unwrap();
    refused(&format!("{url}?table=other"), ErrorKind::Denied, "CREATE").await;
    // What the driver does not know.
    let plugin = format!(
        "INSTALL SONAME 'auth_ed25519'; CREATE USER ed IDENTIFIED VIA ed25519 USING PASSWORD('{PASSWORD}')"
    );
    server.sql(&plugin).await.unwrap();
    let url = format!("mysql://ed:{PASSWORD}@{addr}/app");
    refused(&url, ErrorKind::InvalidConfig, "mysql_native_password").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_cannot_keep_locks_are_refused() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let columns =
        "name VARBINARY(1040) NOT NULL PRIMARY KEY, version BIGINT NOT NULL, value LONGBLOB NOT NULL";
    server.sql(&format!("CREATE TABLE plain ({columns}) ENGINE = Aria")).await.unwrap();
    refused(&format!("{}?table=plain", server.url()), ErrorKind::InvalidConfig, "InnoDB").await;
    server.sql("CREATE VIEW seen AS SELECT * FROM plain").await.unwrap();
    refused(&format!("{}?table=seen", server.url()), ErrorKind::InvalidConfig, "InnoDB").await;
    for (table, columns) in [
        ("words", columns.replace("VARBINARY(1040)", "VARCHAR(700)")),
        ("short", columns.replace("1040", "100")),
        ("twice", columns.replace(" PRIMARY KEY", "").replace("value", "PRIMARY KEY (name, version), value")),
        ("more", format!("{columns}, note INT")),
        ("unsigned_", columns.replace("BIGINT", "BIGINT UNSIGNED")),
    ] {
        server.sql(&format!("CREATE TABLE {table} ({columns}) ENGINE = InnoDB")).await.unwrap();
        refused(&format!("{}?table={table}", server.url()), ErrorKind::InvalidConfig, "another one").await;
        assert_eq!(server.sql(&format!("SELECT COUNT(*) FROM {table}")).await.unwrap(), "0", "{table}");
    }
    server.sql(&format!("CREATE TABLE good ({columns}) ENGINE = InnoDB")).await.unwrap();
    take(&connect(&format!("{}?table=good", server.url())).await, "a").await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_logs_statements_alone_is_refused() {
    if MariadbServer::is_missing() {
        return;
    }
    let server =
        MariadbServer::builder().flag("--log-bin").flag("--binlog-format=STATEMENT").start().await.unwrap();
    refused(&server.url(), ErrorKind::InvalidConfig, "binlog_format").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_refused_and_the_primary_beside_it_is_found() {
    if MariadbServer::is_missing() {
        return;
    }
    let replica = MariadbServer::builder().flag("--read-only").start().await.unwrap();
    let primary = MariadbServer::start().await.unwrap();
    refused(&replica.url(), ErrorKind::Unavailable, "name the primary").await;
    let error = open(&replica.url()).await.unwrap_err();
    assert_eq!(error.code(), "read_only", "{error}");
    assert!(error.message().contains("read_only is ON"), "{error}");
    let both = primary.url().replace('@', &format!("@{},", replica.addr()));
    let locks = connect(&both).await;
    take(&locks, "a").await.release().await.unwrap();
    let rows = primary.sql("SELECT COUNT(*) FROM polylock WHERE name = 'lock/a'").await.unwrap();
    assert_eq!(rows, "1");
    primary.kill();
    let error = open(&both).await.unwrap_err();
    assert!(error.message().starts_with(&primary.addr().to_string()), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("that the server runs")), "{error}");
}

/// Two that take writes are a mistake. The first is slow here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_servers_that_take_writes_all_clients_use_the_first() {
    if MariadbServer::is_missing() {
        return;
    }
    let (first, second) = (MariadbServer::start().await.unwrap(), MariadbServer::start().await.unwrap());
    let proxy = FaultProxy::start(first.addr(), Protocol::Mysql).unwrap();
    let _guard = take(&connect(&first.url()).await, "a").await;
    // Time: longer than the head start of the second server.
    proxy.delay(Direction::ToClient, Duration::from_millis(300));
    let both = second.url().replace('@', &format!("@{},", proxy.addr()));
    let locks = connect(&format!("{both}?command_timeout=60s")).await;
    proxy.heal();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none(), "it is held");
    let report = locks.doctor().await.unwrap();
    let warning = report.warnings().find(|warning| warning.what.contains("all of them take writes"));
    let warning = warning.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(warning.server, format!("{}, {}", proxy.addr(), second.addr()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_whose_first_address_is_silent_leads_to_the_next_one() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let port = server.addr().port();
    let _silent = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let _name = TestName::new("mysql.test", [[127, 0, 0, 2], [127, 0, 0, 1]]);
    let url = server.url().replace("127.0.0.1", "mysql.test");
    let locks = connect(&url).await;
    let guard = take(&locks, "a").await;
    server.kill();
    server.start_again().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let unknown = url.replace("mysql.test", "nowhere.test");
    let _unknown = TestName::new::<[u8; 4]>("nowhere.test", []);
    let error = open(&unknown).await.unwrap_err();
    assert!(error.message().contains("nowhere.test has no address"), "{error}");
}

/// As by a switch-over: its sessions stay, and what they ask is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_takes_no_writes_any_more_is_left() {
    if MariadbServer::is_missing() {
        return;
    }
    let (one, other) = (
        MariadbServer::start().await.unwrap(),
        MariadbServer::builder().flag("--read-only").start().await.unwrap(),
    );
    let both = one.url().replace('@', &format!("@{},", other.addr()));
    let locks = connect(&both).await;
    // By several sessions.
    let guards = join_all(["a", "b", "c", "d"].map(|name| take(&locks, name))).await;
    join_all(guards.into_iter().map(|guard| async { guard.release().await.unwrap() })).await;
    one.sql("SET GLOBAL read_only = 1").await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.code(), error.outcome()), ("read_only", Outcome::NotApplied), "{error}");
    other.sql("SET GLOBAL read_only = 0").await.unwrap();
    take(&locks, "a").await.release().await.unwrap();
    assert_eq!(other.sql("SELECT COUNT(*) FROM polylock WHERE name = 'lock/a'").await.unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_is_asked_for_the_password_on_the_thread_of_the_store() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let threads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&threads);
    let password = Password::callback(move || {
        seen.lock().unwrap().push(thread::current().name().unwrap_or_default().to_owned());
        async { Ok(PASSWORD.to_owned()) }
    });
    let config = MysqlConfig::new(server.addr().to_string(), "app").user("me", password);
    take(&config.connect().await.unwrap(), "a").await.release().await.unwrap();
    let threads = threads.lock().unwrap();
    assert!(!threads.is_empty() && threads.iter().all(|name| name == "polylock-store"), "{threads:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_needs_the_authority_and_the_name_of_the_host() {
    if MariadbServer::is_missing() {
        return;
    }
    let (certificates, others) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let server = MariadbServer::builder().tls(&certificates).start().await.unwrap();
    server.sql("ALTER USER me REQUIRE X509").await.unwrap();
    let (cert, key) = certificates.client();
    let own = format!("tls_cert={}&tls_key={}", cert.display(), key.display());
    let url =
        |ca: &Path| format!("{}?{own}&tls_ca={}", server.url().replace("mysql:", "mysqls:"), ca.display());
    take(&connect(&url(&certificates.ca())).await, "a").await.release().await.unwrap();
    refused(&url(&others.ca()), ErrorKind::Unavailable, "check the certificates").await;
    refused(&url(&certificates.ca()).replace(&own, ""), ErrorKind::Denied, "TLS").await;
    refused(&server.url(), ErrorKind::Denied, "TLS").await;
    let other_name = url(&certificates.ca()).replace("127.0.0.1", "[::ffff:127.0.0.1]");
    refused(&other_name, ErrorKind::Unavailable, "check the certificates").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_names_are_keys_and_other_values_are_errors() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let locks = connect(&server.url()).await;
    take(&locks, &"x".repeat(1_024)).await.release().await.unwrap();
    // They differ in what collations ignore.
    let (upper, lower, spaced) =
        (take(&locks, "A").await, take(&locks, "a").await, take(&locks, "a\u{301}").await);
    server.sql("INSERT INTO polylock VALUES ('lock/text', 1, 'hello')").await.unwrap();
    let error = locks.mutex("text").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unexpected, Outcome::NotApplied), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("delete the value")), "{error}");
    let kept = server.sql("SELECT CONCAT(version, value) FROM polylock WHERE name = 'lock/text'").await;
    assert_eq!(kept.unwrap(), "1hello");
    for guard in [upper, lower, spaced] {
        guard.release().await.unwrap();
    }
    // A row that is deleted comes back with another version.
    let guard = take(&locks, "a").await;
    server.sql("DELETE FROM polylock WHERE name = 'lock/a'").await.unwrap();
    assert!(guard.release().await.is_ok_and(|released| released != Released::Released));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: a thousand locks"]
async fn a_list_has_what_is_in_use_behind_many_records() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let locks = connect(&server.url()).await;
    let make = |at: usize| {
        let locks = &locks;
        async move { take(locks, &format!("a{at}")).await.release().await.unwrap() }
    };
    for at in (0..1_010).step_by(10) {
        join_all((at..at + 10).map(make)).await;
    }
    let _guard = take(&locks, "b").await;
    let names = locks.list("").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_names_the_version_the_engine_and_what_may_be_lost() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let report = connect(&server.url()).await.doctor().await.unwrap();
    let text = report.to_string();
    let records = "records of locks";
    for part in ["a swap on an old version is refused", "MariaDB", "InnoDB", "read_only is OFF", records] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The server of the tests writes no log to the disk.
    let warning =
        report.findings.iter().find(|finding| finding.what.contains("innodb_flush_log_at_trx_commit is 2"));
    assert!(warning.is_some_and(|warning| warning.level == FindingLevel::Warning), "{text}");
    assert!(text.contains("is not known: Access denied"), "{text}");
    server
        .sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1; GRANT REPLICA MONITOR ON *.* TO me")
        .await
        .unwrap();
    let report = connect(&server.url()).await.doctor().await.unwrap();
    assert_eq!(report.warnings().count(), 0, "{report}");
    assert!(report.to_string().contains("replicates no other server"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_examines_all_servers_and_the_rights_of_the_user() {
    if MariadbServer::is_missing() {
        return;
    }
    let durable = || MariadbServer::builder().flag("--innodb-flush-log-at-trx-commit=1");
    let primary = durable().start().await.unwrap();
    let replica = durable().flag("--read-only").start().await.unwrap();
    // Nobody listens at the last one.
    let all =
        primary.url().replace('@', &format!("@{},", replica.addr())).replace("/app", ",127.0.0.1:1/app");
    let locks = connect(&all).await;
    let report = locks.doctor().await.unwrap();
    assert!(report.to_string().contains("it takes no writes: read_only is ON"), "{report}");
    let warnings = |report: &DoctorReport| {
        let warnings = report.warnings().map(|warning| (warning.server.clone(), warning.what.clone()));
        warnings.collect::<Vec<_>>()
    };
    let [(server, what)] = &warnings(&report)[..] else { panic!("{report}") };
    assert!(server == "127.0.0.1:1" && what.contains("cannot be examined"), "{report}");
    replica.sql("GRANT ALL ON *.* TO me").await.unwrap();
    let report = locks.doctor().await.unwrap();
    let [(server, what), _] = &warnings(&report)[..] else { panic!("{report}") };
    assert!(*server == replica.addr().to_string() && what.contains("has ALL PRIVILEGES"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_locks_leave_no_session() {
    if MariadbServer::is_missing() {
        return;
    }
    let server = MariadbServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr(), Protocol::Mysql).unwrap();
    let url = server.url_at(proxy.addr());
    let (one, two) = (connect(&url).await, connect(&url).await);
    join_all((0..20).map(|at| {
        let one = &one;
        async move { take(one, &format!("{at}")).await.release().await.unwrap() }
    }))
    .await;
    one.close().await.unwrap();
    assert_eq!(one.mutex("a").acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    drop(two);
    until("the connections are closed", async || proxy.connections() == 0).await;
}

/// It waits for its connection or its answer: whatever it is that nobody polls any more.
#[test]
fn a_runtime_that_is_not_polled_keeps_nothing_from_others() {
    if MariadbServer::is_missing() {
        return;
    }
    let new_runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (paused, runtime) = (new_runtime(), new_runtime());
    let server = runtime.block_on(MariadbServer::start()).unwrap();
    let locks = paused.block_on(connect(&server.url()));
    let mut requests = Vec::new();
    for turns in 0..50 {
        let mutex = locks.mutex(format!("paused/{turns}"));
        let mut acquiring = Box::pin(async move { mutex.acquire().await });
        paused.block_on(async {
            tokio::select! {
                biased;
                _ = &mut acquiring => {}
                () = async { for _ in 0..turns { tokio::task::yield_now().await } } => {}
            }
        });
        requests.push(acquiring);
        runtime.block_on(async { take(&locks, "a").await.release().await.unwrap() });
    }
}

#[test]
fn locks_go_on_when_the_runtime_that_connected_has_ended() {
    if MariadbServer::is_missing() {
        return;
    }
    let stays = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = stays.block_on(MariadbServer::start()).unwrap();
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    let locks = first.block_on(connect(&server.url()));
    first.block_on(async { take(&locks, "a").await.release().await.unwrap() });
    drop(first);
    stays.block_on(async { take(&locks, "a").await.release().await.unwrap() });
}

/// A member of a cluster by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: a cluster"]
async fn a_member_of_a_galera_cluster_reads_what_is_committed() {
    const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";
    if MariadbServer::is_missing() || !Path::new(PROVIDER).exists() {
        return;
    }
    let flags = [
        "--wsrep-on=ON",
        &format!("--wsrep-provider={PROVIDER}"),
        "--wsrep-cluster-address=gcomm://",
        "--wsrep-node-address=127.0.0.1",
        "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:0",
        "--wsrep-sst-method=rsync",
        "--binlog-format=ROW",
        "--innodb-autoinc-lock-mode=2",
        "--wsrep-retry-autocommit=4",
        "--wsrep-dirty-reads=ON",
    ];
    let options = flags.into_iter().fold(MariadbServer::builder(), |options, flag| options.flag(flag));
    let server = options.start().await.unwrap();
    server.sql("SET GLOBAL log_output = 'TABLE', general_log = 1").await.unwrap();
    let locks = connect(&server.url()).await;
    take(&locks, "a").await.release().await.unwrap();
    assert!(locks.doctor().await.unwrap().to_string().contains("Galera"));
    let set = "SELECT COUNT(*) FROM mysql.general_log \
         WHERE argument = 'SET SESSION wsrep_sync_wait = 7, wsrep_dirty_reads = 0, wsrep_retry_autocommit = 0'";
    assert_ne!(server.sql(set).await.unwrap(), "0");
}
