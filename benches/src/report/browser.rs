//! Headless Chromium: looks at the report as a reader does, and keeps what it sees.
//!
//! Driven by the DevTools protocol through two pipes: JSON messages, each ended by a zero byte.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::data::{Failure, Outcome};

pub(crate) fn is_there() -> bool {
    program().is_some()
}

/// Opens a page in all looks, writes a screenshot of each and a PDF into `folder`, and returns what is wrong with the page.
pub(crate) async fn look_at(page: &Path, folder: &Path) -> Outcome<Vec<String>> {
    let page = page.canonicalize()?;
    let look = async {
        let mut browser = Browser::start().await?;
        for (width, scheme) in LOOKS {
            let name = format!("report-{width}-{scheme}.png");
            browser.open(&page, *width, scheme).await?;
            browser.screenshot(&folder.join(name), *width).await?;
        }
        browser.print(&folder.join("report.pdf")).await?;
        let problems = std::mem::take(&mut browser.problems);
        browser.end().await;
        Ok(problems)
    };
    timeout(PATIENCE, look).await.map_err(|_| Failure::new("Chromium is stuck"))?
}

/// A running Chromium with one tab.
struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    last: u64,
    problems: Vec<String>,
    _profile: Profile,
}

impl Browser {
    async fn start() -> Outcome<Self> {
        let program = program().ok_or_else(|| Failure::new("there is no Chromium in PATH"))?;
        let profile = Profile::new()?;
        // The pipes are descriptors 3 and 4.
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .arg(program)
            .args(ARGUMENTS);
        command.arg(format!("--user-data-dir={}", profile.0.display()));
        if rustix::process::geteuid().is_root() {
            command.arg("--no-sandbox");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("Chromium has no pipes"));
        };
        let output = BufReader::new(output);
        let mut browser =
            Self { child, input, output, session: None, last: 0, problems: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" })).await?;
        let to = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", to).await?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(browser)
    }

    /// Opens a page, and waits until it is loaded.
    async fn open(&mut self, page: &Path, width: u32, scheme: &str) -> Outcome<()> {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size).await?;
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features })).await?;
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", json!({ "url": url })).await?;
        while self.next().await?["method"] != "Page.loadEventFired" {}
        let real = self.evaluate("document.documentElement.scrollWidth").await?;
        if real.as_u64().is_none_or(|real| real > u64::from(width)) {
            self.problems.push(format!("at {width} px the page is {real} px wide"));
        }
        Ok(())
    }

    /// The value of a script's expression.
    async fn evaluate(&mut self, expression: &str) -> Outcome<Value> {
        let script = json!({ "expression": expression, "returnByValue": true });
        Ok(self.call("Runtime.evaluate", script).await?["result"]["value"].take())
    }

    async fn screenshot(&mut self, file: &Path, width: u32) -> Outcome<()> {
        let height = self.evaluate("document.documentElement.scrollHeight").await?.as_f64().unwrap_or(900.0);
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height.min(HIGHEST), "scale": 1 });
        let shot = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let shot = self.call("Page.captureScreenshot", shot).await?;
        save(&shot, file)
    }

    async fn print(&mut self, file: &Path) -> Outcome<()> {
        let pdf = self.call("Page.printToPDF", json!({ "printBackground": true })).await?;
        save(&pdf, file)
    }

    async fn call(&mut self, method: &str, params: Value) -> Outcome<Value> {
        self.last += 1;
        let id = self.last;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.input.write_all(format!("{message}\0").as_bytes()).await?;
        loop {
            let mut answer = self.next().await?;
            if answer["id"] == id {
                return match &answer["error"] {
                    Value::Null => Ok(answer["result"].take()),
                    error => Err(Failure::new(format!("{method}: {error}"))),
                };
            }
        }
    }

    /// The next message. Notes what a page must not do.
    async fn next(&mut self) -> Outcome<Value> {
        let mut bytes = Vec::new();
        self.output.read_until(0, &mut bytes).await?;
        if bytes.pop().is_none() {
            return Err(Failure::new("Chromium has ended"));
        }
        let message: Value = serde_json::from_slice(&bytes)?;
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                if !url.starts_with("file://") || params["type"] != "Document" {
                    self.problems.push(format!("the page requests {url}"));
                }
            }
            Some("Runtime.exceptionThrown") => {
                self.problems.push(format!("exception: {}", params["exceptionDetails"]));
            }
            Some("Runtime.consoleAPICalled") => self.problems.push(format!("console: {}", params["args"])),
            Some("Log.entryAdded") => self.problems.push(format!("log: {}", params["entry"]["text"])),
            _ => {}
        }
        Ok(message)
    }

    async fn end(mut self) {
        self.session = None;
        // It may end before it answers.
        let _ = self.call("Browser.close", json!({})).await;
        let _ = timeout(GRACE, self.child.wait()).await;
    }
}

/// A folder for the browser's own files, removed at the end.
struct Profile(PathBuf);

impl Profile {
    fn new() -> Outcome<Self> {
        let name = format!("polylock-chromium-{:012x}", rand::random::<u64>() >> 16);
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn save(answer: &Value, file: &Path) -> Outcome<()> {
    let data = answer["data"].as_str().unwrap_or_default();
    std::fs::write(file, STANDARD.decode(data)?)?;
    Ok(())
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let all = PROGRAMS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    all.into_iter().find(|file| file.is_file())
}

const PROGRAMS: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const ARGUMENTS: &[&str] = &[
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-default-browser-check",
];
/// Widths in pixels and colour schemes.
const LOOKS: &[(u32, &str)] = &[(390, "light"), (390, "dark"), (1400, "light"), (1400, "dark")];
/// Chromium paints no higher picture.
const HIGHEST: f64 = 16_000.0;
const PATIENCE: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::sample;
    use crate::data::{Results, Verdict};
    use crate::report;

    /// The report in the browser; `None` without one, which is said.
    async fn seen(results: &Results) -> Option<(tempfile::TempDir, Vec<String>)> {
        if !is_there() {
            eprintln!("left out: there is no Chromium (cargo xtask setup installs it)");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let page = report::write(results, folder.path()).expect("a page");
        let problems = look_at(&page, folder.path()).await.expect("a look");
        Some((folder, problems))
    }

    #[tokio::test]
    async fn the_report_renders_everywhere_and_loads_nothing() {
        let mut judged = sample();
        judged.claims.retain(|claim| claim.verdict != Verdict::NotJudged);
        let mut failed = sample();
        failed.fail(
            "contended on zk",
            "stuck: still running after 120s, with a very_long_name_that_cannot_be_broken",
        );
        failed.meta.interrupted = Some("after 3 of 9 parts, during crash on zk".into());
        failed.claims[0].broken_promise = Some("two guards were valid".into());
        for results in [judged, failed, Results::new(sample().meta)] {
            let Some((folder, problems)) = seen(&results).await else { return };
            assert_eq!(problems, Vec::<String>::new());
            for (width, scheme) in LOOKS {
                let shot = std::fs::metadata(folder.path().join(format!("report-{width}-{scheme}.png")));
                assert!(shot.expect("a screenshot").len() > 10_000);
            }
            assert!(std::fs::read(folder.path().join("report.pdf")).expect("a PDF").starts_with(b"%PDF"));
        }
    }

    #[tokio::test]
    async fn problems_are_seen() {
        if !is_there() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let page = folder.path().join("bad.html");
        let bad =
            "<img src=\"http://127.0.0.1:9/x.png\"/><p style=\"width: 2000px\">x</p><script>gone()</script>";
        std::fs::write(&page, bad).expect("a page");
        let problems = look_at(&page, folder.path()).await.expect("a look").join("\n");
        for problem in ["requests http://127.0.0.1:9/x.png", "exception: ", "at 390 px the page is"] {
            assert!(problems.contains(problem), "{problem}: {problems}");
        }
    }

    #[tokio::test]
    async fn the_chooser_shows_one_answer_and_its_column() {
        if !is_there() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let page = report::write(&sample(), folder.path()).expect("a page");
        let mut browser = Browser::start().await.expect("a browser");
        browser.open(&page, 1400, "light").await.expect("a page");
        let chosen = "Array.from(document.querySelectorAll('.answer:not([hidden])'), a => a.dataset.for).join() + ' ' + \
                      Array.from(document.querySelectorAll('th.chosen'), cell => cell.textContent).join()";
        assert_eq!(browser.evaluate(chosen).await.expect("a value"), "no no no redis redis");
        let click = "document.querySelectorAll('input[value=yes]').forEach(input => input.click())";
        browser.evaluate(click).await.expect("a click");
        assert_eq!(browser.evaluate(chosen).await.expect("a value"), "yes yes yes redis zk");
        assert_eq!(browser.problems, Vec::<String>::new());
        browser.end().await;
    }
}
