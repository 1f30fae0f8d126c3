//! The results as one self-contained HTML page: no font and no network. A script draws the pictures from the results, which
//! the page has as JSON.

mod choice;
mod claims;
mod colour;
pub(crate) mod console;
pub(crate) mod faults;
mod html;
mod markdown;
mod overview;
mod scenario;
pub(crate) mod sheet;
mod summary;
mod targets;
mod tone;

use std::fmt::{Display, Write as _};
use std::io;
use std::path::Path;

use serde::Serialize;

use self::html::escape;
use self::tone::Tone;
use crate::data::results::write_file;
use crate::data::{Meta, Results};

/// Writes the results, the page and the Markdown into `folder`, which is created if necessary, and prints where they are.
pub(crate) fn write_all(results: &Results, folder: &Path) -> io::Result<()> {
    let page = write_file(folder, "report.html", &render(results))?;
    let paths = [results.write(folder)?, page, write_file(folder, "report.md", &markdown::render(results))?];
    println!("{}", paths.map(|path| path.display().to_string()).join("\n"));
    Ok(())
}

/// The page: the choice, the claims and the faults; in the appendix our targets and all numbers.
pub(crate) fn render(results: &Results) -> String {
    let mut page = String::from(HEAD);
    header(&mut page, results);
    contents(&mut page, results);
    summary::trouble(&mut page, results);
    choice::section(&mut page, results);
    claims::list(&mut page, results);
    claims::sections(&mut page, results);
    faults::section(&mut page, results);
    appendix(&mut page, results);
    let _ = write!(
        page,
        "</main>\n<script type=\"application/json\" id=\"results\">{}</script>\n\
         <script type=\"application/json\" id=\"colours\">{}</script>\n",
        json(results),
        json(&colour::colours(results))
    );
    page.push_str(END);
    page
}

/// Something for the script that draws the pictures, safe within a page.
fn json(it: &impl Serialize) -> String {
    let json = serde_json::to_string(it).unwrap_or_default();
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

fn header(page: &mut String, results: &Results) {
    let (title, machine) = (escape(&summary::headline(results)), escape(&results.meta.machine()));
    let _ = writeln!(page, "<header>\n<h1>{title}</h1>\n<p class=\"lead\">{machine}</p>\n</header>");
    let verdict = results.verdict();
    let _ = writeln!(
        page,
        "<p class=\"verdict {}\">{}</p>",
        Tone::from(verdict).class(),
        escape(&summary::verdict_line(results, verdict))
    );
}

fn contents(page: &mut String, results: &Results) {
    let mut links = vec![("choice".to_owned(), "Which one?".to_owned())];
    if results.has_claims() {
        links.push(("claims".into(), "Claims".into()));
    }
    if !results.faults.is_empty() {
        links.push(("faults".into(), "Faults".into()));
    }
    links.push(("appendix".into(), "Targets and numbers:".into()));
    let scenarios = results.scenarios().into_iter();
    links.extend(scenarios.map(|one| (format!("scenario-{}", one.name), one.name.to_owned())));
    page.push_str("<nav>\n");
    for (section, name) in links {
        let _ = writeln!(page, "<a href=\"#{}\">{}</a>", escape(&section), escape(&name));
    }
    page.push_str("</nav>\n");
}

fn appendix(page: &mut String, results: &Results) {
    page.push_str("<h1 class=\"appendix\" id=\"appendix\">Appendix</h1>\n");
    facts(page, &results.meta);
    if let Some(sheet) = overview::sheet(results) {
        let _ = writeln!(page, "<section>\n<h2>Side by side</h2>\n{}</section>", sheet.html(""));
    }
    if results.targets.iter().any(|target| target.met.is_some()) {
        page.push_str("<section id=\"targets\">\n<h2>Our own targets</h2>\n");
        let _ = writeln!(page, "<p class=\"soft\">{}</p>", targets::RULE);
        for backend in results.backends() {
            if let Some((sheet, note)) = targets::sheet(results, backend, true) {
                let backend = escape(backend);
                let _ = write!(page, "<h3>Targets of {backend}</h3>\n{}", sheet.html(""));
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
    fact("Run", &meta.machine());
    fact("Began", &meta.date);
    fact("Servers", &meta.servers());
    fact("Command", &meta.command);
    fact("Repeats of each scenario", &meta.repeats);
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
    include_str!("report/page/style.css"),
    "</style>\n</head>\n<body>\n<main>\n",
);
const END: &str = concat!(
    "<script>\n",
    include_str!("report/page/chooser.js"),
    include_str!("report/page/charts.js"),
    "</script>\n</body>\n</html>\n"
);
const HOW_TO_READ: &str = include_str!("report/page/how_to_read.html");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Row;
    use crate::data::results::sample;

    #[test]
    fn the_page_is_well_formed_and_its_links_lead_somewhere() {
        let mut results = sample();
        results.fail("contended on zk", "stuck: <still> running");
        results.push(Row::new("the <herd>", "et&cd", "wake_ups", "", 7.0));
        results.claims[2].broken_promise = Some("two guards were valid".into());
        for page in [render(&results), render(&Results::new(sample().meta))] {
            check_form(&page);
            for link in page.split("href=\"#").skip(1) {
                let (name, _) = link.split_once('"').expect("an end");
                assert!(page.contains(&format!(" id=\"{name}\"")), "{name}");
            }
        }
    }

    #[test]
    fn the_page_loads_nothing() {
        let page = render(&sample()).to_lowercase();
        for reference in
            ["http://", "https://", "//cdn", "src=", "url(", "@import", "<link", "fetch(", "import("]
        {
            assert!(!page.contains(reference), "{reference}");
        }
        assert_eq!(page.matches("href=").count(), page.matches("href=\"#").count());
    }

    #[test]
    fn the_script_has_its_constants() {
        for name in END.split(|letter: char| !letter.is_ascii_uppercase()).filter(|name| name.len() > 2) {
            assert!(
                END.contains(&format!("var {name} = ")) || ["HTML", "JSON", "SVG"].contains(&name),
                "{name}"
            );
        }
    }

    #[test]
    fn an_overlap_a_failure_and_a_broken_promise_cannot_be_missed() {
        let mut results = sample();
        let red = "<span class=\"pill broken\">polylock breaks its promise</span>";
        assert!(!render(&results).contains(red));
        results.push(Row::overlaps("contended", "redlock", 2));
        results.fail("contended on zk", "stuck");
        results.claims[2].broken_promise = Some("two guards were valid".into());
        results.meta.interrupted = Some("after 3 of 9 parts, during crash on zk".into());
        let page = render(&results);
        assert!(page.contains("BROKEN: 2 overlaps (contended on redlock)."), "{page}");
        assert!(!page.contains("Mutual exclusion held:"));
        assert_eq!(
            [page.matches("contended on zk: stuck").count(), page.matches(red).count()],
            [2, 2],
            "{page}"
        );
        assert!(page.contains("interrupted after 3 of 9 parts"), "{page}");
    }

    /// Every tag that is opened is closed, in order, and every attribute is quoted.
    fn check_form(page: &str) {
        let body = page.strip_prefix("<!doctype html>\n").expect("a doctype");
        let (body, scripts) = body.split_once("<script>").expect("the scripts");
        let body = format!("{body}{}", scripts.split_once("</script>").expect("their end").1);
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
