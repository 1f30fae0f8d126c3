//! What the doctor finds at servers: dangers, missing commands and rights.

use std::time::Duration;

use lock_core::{DoctorReport, ErrorKind};
use lock_testkit::{RedisCluster, RedisServer, give_back, take};

use crate::common::{client, cluster_without, connect, try_connect, url_without};

async fn report(url: &str) -> DoctorReport {
    connect(url).await.doctor().await.unwrap()
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn the_doctor_reports_dangers() {
    let server = RedisServer::builder().maxmemory_policy("allkeys-lru").start().await.unwrap();
    let report_of = report(&server.url()).await;
    let text = report_of.to_string();
    let (version, address) = (RedisServer::version(), server.addr().to_string());
    for part in [version, &address, "standalone", "master", "0 replicas", "appendonly is no", "clock"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert_eq!(report_of.warnings().count(), 1, "{text}");
    assert!(report_of.warnings().all(|finding| finding.what.contains("allkeys-lru")), "{text}");

    let durable = RedisServer::builder().appendonly(true).config("min-replicas-to-write", "1");
    let text = report(&durable.start().await.unwrap().url()).await.to_string();
    let replicas = match version.starts_with("Redis 6") {
        true => "does not apply min-replicas-to-write to scripts",
        false => "every write is refused",
    };
    assert!(text.contains("survive a restart") && text.contains(replicas), "{text}");
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_doctor_sees_every_master_of_a_cluster() {
    let cluster = RedisCluster::start().await.unwrap();
    let text = report(&cluster.url()).await.to_string();
    for master in cluster.masters() {
        let version = RedisServer::version();
        assert!(text.contains(&format!("{}: {version}, cluster, master", master.addr())), "{text}");
    }
}

#[tokio::test]
async fn the_doctor_counts_last_tokens_and_sees_that_the_memory_is_full() {
    let server = RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap();
    let locks = connect(&server.url()).await;
    for name in ["a", "b"] {
        give_back(take(&locks, name).await).await;
    }
    let report = async || locks.doctor().await.unwrap().to_string();
    let few = report().await;
    assert!(few.contains(": 2 locks have a last token, 0.0 MB in all and "), "{few}");
    assert!(!few.contains("token_ttl") && !few.contains("the memory is"), "{few}");

    // As 60 000 locks leave them, and as many other keys: more than are looked at.
    let fill = "for n = 1, 60000 do redis.call('ZADD', 'polylock:tokens:{lock:' .. n .. '}', n, 'last') \
                redis.call('SET', n, '') end return redis.status_reply('OK')";
    server.call(&["EVAL", fill, "0"]).await;
    let many = report().await;
    let number = |before, after| -> u32 {
        let (_, rest) = many.split_once(before).unwrap();
        rest.split_once(after).unwrap().0.parse().unwrap()
    };
    assert!((57_000..63_000).contains(&number(": about ", " locks")), "{many}");
    assert!(many.contains("token_ttl"), "{many}");
    // As much as the server says that it uses for them.
    assert!((150..220).contains(&number(" MB in all and ", " bytes each")), "{many}");

    server.call(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let full = report().await;
    assert!(full.contains("warning") && full.contains("the memory is full, with "), "{full}");
}

#[tokio::test]
async fn the_doctor_names_commands_that_the_server_lacks() {
    let without =
        async |commands: &[&str]| RedisServer::builder().without_commands(commands).start().await.unwrap();
    // A lock does not work, says why, and the doctor knows it.
    for (commands, of_acquire) in
        [(&["EVALSHA", "TIME", "ZADD"][..], "rename-command"), (&["TIME"], "polylock doctor")]
    {
        let server = without(commands).await;
        let locks = connect(&server.url()).await;
        let report = locks.doctor().await.unwrap();
        let wanted = format!("no command {}:", commands.join(", "));
        assert!(report.warnings().any(|finding| finding.what.contains(&wanted)), "{report}");
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(of_acquire), "{error}");
    }

    let server = without(&["SCRIPT"]).await;
    let locks = connect(&server.url()).await;
    give_back(take(&locks, "a").await).await;
    let report_of = locks.doctor().await.unwrap();
    assert!(report_of.to_string().contains("no command SCRIPT: the first call"), "{report_of}");
    assert!(!report_of.warnings().any(|finding| finding.what.contains("SCRIPT")), "{report_of}");

    let error = try_connect(&without(&["SCRIPT", "EVAL"]).await.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("SCRIPT"), "{error}");

    let report_of = report(&without(&[]).await.url()).await;
    assert!(!report_of.to_string().contains("command"), "{report_of}");
}

/// The rights that waiters need, or what is said when one is missing: once for each server.
fn check(report: &DoctorReport, missing: &[&str], wanted: Option<&str>) {
    let refused: Vec<_> = report.warnings().filter(|found| found.what.contains("is refused")).collect();
    assert_eq!(refused.is_empty(), wanted.is_none(), "{missing:?}: {report}");
    assert!(
        wanted.is_none_or(|wanted| refused.iter().any(|found| found.what.starts_with(wanted))),
        "{missing:?}: {report}"
    );
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_doctor_reports_missing_rights_of_waiters() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let server = RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap();
    for (missing, wanted) in [
        (&[][..], None),
        (&["-publish"], Some("PUBLISH is refused")),
        (&["resetchannels"], Some("SUBSCRIBE is refused")),
        (&["-client|tracking"], Some("CLIENT TRACKING is refused")),
    ] {
        check(&report(&url_without(&server, missing).await).await, missing, wanted);
    }
    let old = RedisServer::builder().without_commands(&["HELLO"]).start().await.unwrap();
    check(&report(&old.url()).await, &["HELLO"], Some("RESP3 is refused"));

    let cluster = RedisCluster::start().await.unwrap();
    let url = cluster_without(&cluster, &["-ssubscribe", "-spublish"]).await;
    let text = report(&url).await.to_string();
    for (part, times) in [("SSUBSCRIBE is refused", 3), ("SPUBLISH is refused", 3), ("+ssubscribe", 6)] {
        assert_eq!(text.matches(part).count(), times, "{text}");
    }
    for (missing, wanted) in [
        (&["-ssubscribe", "-spublish", "-client|tracking"][..], None),
        (&["-subscribe"], Some("SUBSCRIBE is refused")),
        (&["-publish"], Some("PUBLISH is refused")),
        (&["resetchannels"], Some("SUBSCRIBE is refused")),
    ] {
        let url = format!("{}?wait=notify", cluster_without(&cluster, missing).await);
        let report = report(&url).await;
        check(&report, missing, wanted);
        assert!(report.warnings().all(|found| !found.advice.contains("+ssubscribe")), "{report}");
    }
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn the_doctor_reports_that_a_process_polls_for_want_of_a_right() {
    let server = RedisServer::start().await.unwrap();
    let locks = connect(&url_without(&server, &["-subscribe"]).await).await;
    let polls = async || locks.doctor().await.unwrap().to_string().contains("this process poll since");
    let guard = take(&client(&server, "ttl=60s").await, "a").await;
    // Time: it waits, and polls.
    let waited = locks.mutex("a").try_acquire_for(Duration::from_millis(300)).await;
    assert!(waited.unwrap().is_none());
    assert!(!polls().await, "the doctor says that the right is missing");
    server.call(&["ACL", "SETUSER", "worker", "+subscribe"]).await;
    assert!(polls().await);
    give_back(guard).await;
}
