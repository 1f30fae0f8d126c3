//! The results as one self-contained HTML page: no font, no network, and a few lines of script that only help to choose.

mod axis;
mod baseline;
pub(crate) mod browser;
mod chart;
mod choice;
mod claims;
mod colour;
pub(crate) mod console;
mod curve;
pub(crate) mod faults;
mod html;
mod markdown;
mod needs;
mod picture;
mod promises;
mod scenario;
pub(crate) mod sheet;
mod steps;
mod summary;
mod svg;
mod timeline;
mod tone;

use std::fmt::{Display, Write as _};
use std::io;
use std::path::{Path, PathBuf};

use self::html::escape;
use self::tone::Tone;
use crate::data::results::labels::quantity;
use crate::data::results::write_file;
use crate::data::{Meta, Results};

/// Writes the results, the page and the Markdown into `folder`, which is created if necessary, and prints where they are.
pub(crate) fn write_all(results: &Results, folder: &Path) -> io::Result<()> {
    let paths = [results.write(folder)?, write(results, folder)?, write_markdown(results, folder)?];
    println!("{}", paths.map(|path| path.display().to_string()).join("\n"));
    Ok(())
}

/// Writes `report.html`, and returns the path.
fn write(results: &Results, folder: &Path) -> io::Result<PathBuf> {
    write_file(folder, "report.html", &render(results))
}

/// Writes `report.md`, and returns the path.
fn write_markdown(results: &Results, folder: &Path) -> io::Result<PathBuf> {
    write_file(folder, "report.md", &markdown::render(results))
}

/// The page: the choice, the claims and the faults; in the appendix our promises and all numbers.
pub(crate) fn render(results: &Results) -> String {
    let mut page = String::from(HEAD);
    header(&mut page, results);
    summary::trouble(&mut page, results);
    choice::section(&mut page, results);
    baseline::section(&mut page, results);
    claims::list(&mut page, results);
    claims::sections(&mut page, results);
    faults::section(&mut page, results);
    appendix(&mut page, results);
    page.push_str(END);
    page
}

fn header(page: &mut String, results: &Results) {
    let meta = &results.meta;
    let _ = write!(
        page,
        "<header>\n<h1>{}</h1>\n<p class=\"lead\">polylock {}, {} run of {} on {}, {} cores ({})</p>\n</header>\n",
        escape(&summary::headline(results)),
        escape(&meta.version),
        meta.mode,
        escape(&quantity(meta.duration_s, "s")),
        escape(meta.date.get(..10).unwrap_or(&meta.date)),
        meta.cores,
        escape(&meta.cpu),
    );
    let verdict = results.verdict();
    let _ = writeln!(
        page,
        "<p class=\"verdict {}\">{}</p>",
        Tone::from(verdict).class(),
        escape(&summary::verdict_line(results, verdict))
    );
}

fn appendix(page: &mut String, results: &Results) {
    page.push_str("<h1 class=\"appendix\" id=\"appendix\">Appendix</h1>\n");
    facts(page, &results.meta);
    summary::cards(page, results);
    if results.promises.iter().any(|promise| promise.met.is_some()) {
        page.push_str("<section id=\"promises\">\n<h2>Our own targets</h2>\n");
        for backend in results.backends() {
            if let Some((sheet, note)) = promises::sheet(results, backend, true) {
                let backend = escape(backend);
                let _ = write!(page, "<h3>What {backend} promises</h3>\n{}", sheet.html(""));
                if !note.is_empty() {
                    let _ = writeln!(page, "<p class=\"soft\">{note}.</p>");
                }
            }
        }
        page.push_str("</section>\n");
    }
    for scenario in results.scenarios() {
        scenario::section(page, results, &scenario);
    }
    page.push_str(HOW_TO_READ);
}

fn facts(page: &mut String, meta: &Meta) {
    page.push_str("<section>\n<h2>Where and how it was measured</h2>\n<dl class=\"facts\">\n");
    let mut fact = |name: &str, value: &dyn Display| {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value.to_string()));
    };
    fact("Date", &meta.date);
    fact("Command", &meta.command);
    fact("polylock", &meta.version);
    fact("Mode", &meta.mode);
    fact("Repeats of each scenario", &meta.repeats);
    fact("Duration", &quantity(meta.duration_s, "s"));
    fact("Processor", &format!("{}, {} cores", meta.cpu, meta.cores));
    fact("Kernel", &meta.kernel);
    fact("Redis", &meta.redis.as_deref().unwrap_or("not measured"));
    fact("ZooKeeper", &meta.zookeeper.as_deref().unwrap_or("not measured"));
    fact("Note", &meta.note);
    page.push_str("</dl>\n<details>\n<summary>All settings</summary>\n<dl class=\"facts\">\n");
    for (name, value) in &meta.settings {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    page.push_str("</dl>\n</details>\n</section>\n");
}

/// The policy forbids all network access of the page.
const HEAD: &str = concat!(
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n",
    "<meta http-equiv=\"Content-Security-Policy\" ",
    "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n",
    "<title>polylock: locks over Redis and ZooKeeper compared</title>\n<style>\n",
    include_str!("report/style.css"),
    "</style>\n</head>\n<body>\n<main>\n",
);
const END: &str =
    concat!("</main>\n<script>\n", include_str!("report/chooser.js"), "</script>\n</body>\n</html>\n");
const HOW_TO_READ: &str = include_str!("report/how_to_read.html");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::labels::number;
    use crate::data::results::sample;
    use crate::data::{Mode, Plan, Row, promises};

    #[test]
    fn the_page_is_well_formed() {
        check_form(&render(&sample()));
        check_form(&render(&Results::new(sample().meta)));
    }

    #[test]
    fn the_page_loads_nothing() {
        let page = render(&sample()).to_lowercase();
        for reference in [
            "http://", "https://", "//cdn", "src=", "url(", "@import", "<script ", "<link", "fetch(",
            "import(",
        ] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert_eq!(page.matches("href=").count(), page.matches("href=\"#").count());
    }

    #[test]
    fn the_page_has_every_number_and_fact() {
        let results = sample();
        let page = render(&results);
        for row in &results.rows {
            if row.metric != "overlaps" {
                assert!(page.contains(&format!("<td>{}</td>", number(row.value))), "{row:?}");
            }
        }
        for fact in ["7.0.15", "3.8.0", "Linux 6.1.0", "Sample &lt;CPU&gt; &amp; Co", "contended.processes"] {
            assert!(page.contains(fact), "{fact}");
        }
        assert_eq!(page.matches("<svg").count(), 2 + 5 + 1 + 5);
        assert!(page.contains("no two holds overlapped in any of the 10 recorded histories"));
        assert!(page.contains("In this run: hold 1 ms; processes 8."));
    }

    #[test]
    fn promises_come_first_with_the_measured_numbers() {
        let mut results = sample();
        assert!(!render(&results).contains("What redis promises"));
        results.push(Row::new("peers", "rslock", "waiter_p50", "us", 1e5).with_floor(200.0));
        results.promises = promises::judge(&results, &Plan::new(Mode::Full));
        let page = render(&results);
        check_form(&page);
        assert!(
            page.contains("<td>rslock: hand-off to a waiter p50 against ours</td><td>peers</td>"),
            "{page}"
        );
        assert!(
            page.contains("<td>&gt;= 20.00x</td><td>500.00x</td><td><span class=\"pill held\">yes</span>")
        );
        assert!(page.contains("<h1>Locks over memory, redis, redlock and zk, side by side</h1>"), "{page}");
        assert!(page.contains(" were not measured in this run"));
    }

    #[test]
    fn an_overlap_heads_the_page_and_is_named() {
        let mut results = sample();
        results.push(Row::overlaps("contended", "redlock", 2));
        let page = render(&results);
        assert!(page.contains("BROKEN: 2 overlaps (contended on redlock)."), "{page}");
        assert!(page.contains("<span class=\"pill broken\">BROKEN (2)</span>"));
        assert!(!page.contains("Mutual exclusion held:"));
    }

    #[test]
    fn a_run_without_rivals_has_no_verdict_and_says_so() {
        let mut results = Results::new(sample().meta);
        results.push(Row::new("throughput", "redis 1 task", "p50", "us", 90.0));
        assert!(render(&results).contains(">Mutual exclusion was not checked.<"));
    }

    #[test]
    fn what_failed_is_said_at_the_top_and_in_its_section() {
        let mut results = sample();
        results.fail("contended on zk", "stuck: <still> running");
        results.meta.interrupted = Some("after 3 of 9 parts, during crash on zk".into());
        let page = render(&results);
        check_form(&page);
        assert_eq!(page.matches("stuck: &lt;still&gt; running").count(), 2, "{page}");
        assert!(page.contains("interrupted after 3 of 9 parts"), "{page}");
    }

    #[test]
    fn every_claim_and_fault_is_shown() {
        let results = sample();
        let page = render(&results);
        for claim in &results.claims {
            assert!(page.contains(&format!("<a href=\"#claim-{}\">", claim.id)), "{claim:?}");
            assert!(page.contains(&format!("<section id=\"claim-{}\">", claim.id)), "{claim:?}");
        }
        for cell in
            ["holds</span><small>L1 1, L2 0, L3 0</small>", "breaks as documented</span><small>L1 1, L2 1"]
        {
            assert!(page.contains(cell), "{cell}");
        }
        assert!(page.contains("None of 3 differ"), "{page}");
        assert!(page.contains("Missing: curator: java &amp; its jars are missing"), "{page}");
    }

    #[test]
    fn a_broken_promise_is_red_in_the_list_and_in_its_section() {
        let mut results = sample();
        let red = "<span class=\"pill broken\">polylock breaks its promise</span>";
        assert!(!render(&results).contains(red));
        results.claims[2].broken_promise = Some("two guards were valid".into());
        let page = render(&results);
        check_form(&page);
        assert_eq!(page.matches(red).count(), 2, "{page}");
    }

    #[test]
    fn links_lead_somewhere() {
        let page = render(&sample());
        for link in page.split("href=\"#").skip(1) {
            let (name, _) = link.split_once('"').expect("an end");
            assert!(page.contains(&format!(" id=\"{name}\"")), "{name}");
        }
    }

    #[test]
    fn unknown_names_get_a_chart_and_a_table() {
        let mut results = sample();
        results.push(Row::new("the <herd>", "et&cd", "wake_ups", "", 7.0));
        results.push(Row::new("the <herd>", "redis", "queue_p50", "ms", 7.0));
        results.push(Row::new("the <herd>", "redis", "queue_p999", "ms", 70.0));
        let page = render(&results);
        check_form(&page);
        assert!(page.contains("<h2>the &lt;herd&gt;</h2>"));
        assert!(page.contains("aria-label=\"the &lt;herd&gt;: wake ups by backend\""));
        assert!(page.contains("aria-label=\"the &lt;herd&gt;: queue by backend\""));
        assert!(
            page.contains("no verdict for the &lt;herd&gt; on redis, the &lt;herd&gt; on et&amp;cd."),
            "{page}"
        );
    }

    /// Every tag that is opened is closed, in order, and every attribute is quoted.
    fn check_form(page: &str) {
        let body = page.strip_prefix("<!doctype html>\n").expect("a doctype");
        let mut open = Vec::new();
        for piece in body.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').unwrap_or_else(|| panic!("no end of <{piece}"));
            assert!(!text.contains('>'), "a bare > after <{tag}>");
            assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "</{name}>");
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().expect("a name"));
            }
        }
        assert_eq!(open, Vec::<&str>::new());
    }
}
