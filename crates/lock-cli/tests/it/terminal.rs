//! `polylock run` in a terminal: whose it is, and what a shell does with the job.

use std::fs;
use std::time::Duration;

use crate::common::{POLYLOCK, Stage, Terminal};
use lock_testkit::until;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

impl Stage {
    /// A line of a shell in a terminal.
    pub(crate) fn terminal(&self, line: &str) -> Terminal {
        Terminal::open(line, &[("POLYLOCK_URL", &self.url)])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_that_of_the_command() {
    let (stage, _redis) = Stage::on_redis().await;
    let open = |script: &str| stage.terminal(&format!("{POLYLOCK} run job -- bash -c '{script}'"));

    let mut terminal = open("stty -echo; echo ready; read line; echo got $line; stty echo; exit 6");
    terminal.shows("ready", 1).await;
    terminal.types("words\n");
    terminal.ends_as(6, &["got words"]).await;

    // In the background of the terminal, and in its foreground.
    for begin in ["", "stty -echo; "] {
        let mut terminal = open(&format!(
            "{begin}trap \"echo interrupted; exit 7\" INT; echo ready; while :; do sleep 0.02; done"
        ));
        terminal.shows("ready", 1).await;
        terminal.types("\u{3}");
        let screen = terminal.ends_as(7, &[]).await;
        assert_eq!(screen.matches("interrupted").count(), 1, "{screen}");
    }
    let mut terminal = open("trap \"\" INT; echo ready; read line; echo got $line");
    terminal.shows("ready", 1).await;
    terminal.types("\u{1a}\u{3}words\n");
    // An orphaned job is not stopped.
    terminal.ends_as(0, &["got words"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_job_that_reads_from_the_terminal_is_hung_up_and_does_not_spin() {
    let (stage, _redis) = Stage::on_redis().await;
    for (begin, survives) in [("", false), ("trap : HUP; ", true)] {
        let log = stage.folder().join(format!("log{survives}"));
        let reads = format!("{begin}sleep 0.5; while :; do read line </dev/tty; done");
        // The shell leaves the job in the background of the terminal, and nobody continues it.
        let orphan = format!(
            "set -m; ({POLYLOCK} run job -- bash -c \"{reads}\" >{} 2>&1 &); sleep 60",
            log.display()
        );
        let terminal = stage.terminal(&format!("bash -c '{orphan}'"));
        let hung_up = async || fs::read_to_string(&log).is_ok_and(|text| text.contains("it gets SIGHUP"));
        until("the message", hung_up).await;
        if survives {
            let pid = stage.holder().await.unwrap();
            let before = cpu_ticks(pid);
            // Time: it could spin.
            sleep(Duration::from_secs(2)).await;
            // A hundred ticks are a second.
            assert!(cpu_ticks(pid) - before < 40, "it spins");
            assert_eq!(fs::read_to_string(&log).unwrap().matches("SIGHUP").count(), 1);
            kill_process(pid, Signal::TERM).unwrap();
        }
        until("its end", async || !stage.is_held().await).await;
        drop(terminal);
    }
}

fn cpu_ticks(pid: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().map(|field| field.parse().unwrap_or(0));
    fields.skip(11).take(2).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_stops_and_continues_the_job() {
    let (stage, _redis) = Stage::on_redis().await;
    let mut shell = stage.terminal("bash --norc -i");
    shell.shows("bash-", 1).await;
    let count = |shell: &Terminal| shell.screen().matches("\ntick ").count();
    let ticks = "i=0; while :; do echo tick $((++i)); sleep 0.05; done";
    for (round, begin) in [(1, ""), (2, "stty -echo; ")] {
        shell.types(&format!("{POLYLOCK} run job --ttl 20s -- bash -c '{begin}{ticks}'\n"));
        shell.shows("tick 3\r", round).await;
        shell.types("\u{1a}");
        shell.shows("Stopped", round).await;
        let before = count(&shell);
        // Time: the whole job stands still.
        sleep(Duration::from_millis(500)).await;
        assert_eq!(count(&shell), before, "{}", shell.screen());
        assert!(stage.is_held().await);
        shell.types("fg\n");
        until("more ticks", async || count(&shell) > before + 3).await;
        shell.types("\u{3}");
        shell.types(&format!("echo code$?-{round}\n"));
        shell.shows(&format!("code130-{round}"), 1).await;
        assert!(!stage.is_held().await);
    }
    // A lock that was lost meanwhile: the command does not go on.
    shell.types(&format!("{POLYLOCK} run job --ttl 1s -- bash -c 'trap \"\" TERM; {ticks}'\n"));
    shell.shows("tick 3\r", 3).await;
    shell.types("\u{1a}");
    shell.shows("Stopped", 3).await;
    let held = async || !stage.is_held().await;
    until("the end of the lock", held).await;
    let before = count(&shell);
    shell.types("fg\n");
    shell.types("echo code$?-3\n");
    shell.shows("code70-3", 1).await;
    assert_eq!(count(&shell), before, "{}", shell.screen());
    // A command that is killed leaves the terminal as it was.
    shell.types(&format!("{POLYLOCK} run job --grace 0.1 -- bash -c 'stty -echo raw; trap \"\" TERM; echo $((40+2)); while :; do sleep 0.05; done'\n"));
    shell.shows("42", 1).await;
    stage.breaks().await;
    shell.shows("removed on the server; the command gets SIGKILL", 1).await;
    shell.types("stty -a | grep -o ' echo '; echo code$?-4\n");
    shell.shows("code0-4", 1).await;
    // Who reads from a pipe keeps the terminal.
    shell.types(&format!(
        "{POLYLOCK} run job -- seq 3 | bash -c 'cat; read line </dev/tty; echo got $line'\n"
    ));
    shell.shows("3\r\n", 1).await;
    shell.types("words\n");
    shell.shows("got words", 1).await;
    shell.types("exit\n");
    shell.ends_as(0, &[]).await;
}
