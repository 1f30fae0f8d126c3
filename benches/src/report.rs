//! The results as one HTML page that needs nothing but itself: no script, no font, no network.

mod chart;

use std::fmt::{Display, Write as _};
use std::io;
use std::path::{Path, PathBuf};

use chart::{Bar, Chart, Group, quantity};

use crate::peers::Peer;
use crate::promises::Judged;
use crate::results::{Meta, Results, Row, Scenario, Verdict, number, title, write_file};

/// Writes `report.html` into `folder`, which is created if need be, and returns its path.
///
/// # Errors
///
/// When the folder or the file cannot be written; the message names the path.
pub(crate) fn write(results: &Results, folder: &Path) -> io::Result<PathBuf> {
    write_file(folder, "report.html", &render(results))
}

/// The page.
pub(crate) fn render(results: &Results) -> String {
    let meta = &results.meta;
    let mut page = String::from(HEAD);
    let _ = write!(
        page,
        "<header>\n<h1>{}</h1>\n<p class=\"lead\">polylock {}, {} run of {} on {}, {} cores ({})</p>\n</header>\n",
        escape(&headline(results)),
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
        verdict_class(verdict),
        escape(&verdict_line(results, verdict))
    );
    cards(&mut page, results);
    for backend in results.backends() {
        promises(&mut page, results, backend);
    }
    for scenario in results.scenarios() {
        section(&mut page, results, &scenario);
    }
    page.push_str(HOW_TO_READ);
    facts(&mut page, meta);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Makes any text safe between tags and in quoted attributes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

fn headline(results: &Results) -> String {
    let mut backends = results.backends();
    backends.retain(|backend| !Peer::ALL.iter().any(|peer| peer.as_str() == *backend));
    match backends[..] {
        [] => "Nothing was measured".into(),
        [only] => format!("Locks over {only}"),
        [ref all @ .., last] => format!("Locks over {} and {last}, side by side", all.join(", ")),
    }
}

fn verdict_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Held => "held",
        Verdict::Broken(_) => "broken",
        Verdict::Unchecked => "unchecked",
    }
}

fn verdict_line(results: &Results, verdict: Verdict) -> String {
    let scenarios = results.scenarios();
    let pairs = || {
        scenarios.iter().flat_map(|scenario| {
            let of = |backend| (scenario.name, backend, scenario.verdict(backend));
            scenario.backends().into_iter().map(of)
        })
    };
    let places = |wanted: fn(Verdict) -> bool| {
        let named = pairs().filter(|(.., verdict)| wanted(*verdict));
        named.map(|(scenario, backend, _)| format!("{scenario} on {backend}")).collect::<Vec<_>>().join(", ")
    };
    match verdict {
        Verdict::Held => format!(
            "Mutual exclusion held: no two holds overlapped in any of the {} recorded histories.",
            pairs().count()
        ),
        Verdict::Broken(overlaps) => format!(
            "Mutual exclusion was BROKEN: {} ({}).",
            if overlaps == 1 { "1 overlap".to_owned() } else { format!("{overlaps} overlaps") },
            places(|verdict| matches!(verdict, Verdict::Broken(_)))
        ),
        Verdict::Unchecked if scenarios.is_empty() => "Mutual exclusion was not checked.".into(),
        Verdict::Unchecked => format!(
            "Mutual exclusion was not checked everywhere: no verdict for {}.",
            places(|verdict| verdict == Verdict::Unchecked)
        ),
    }
}

fn cards(page: &mut String, results: &Results) {
    let scenarios = results.scenarios();
    page.push_str("<div class=\"cards\">\n");
    for backend in results.backends() {
        let mut facts = String::new();
        for (scenario, metric, name) in HIGHLIGHTS {
            let found = scenarios.iter().find(|found| found.name == *scenario);
            if let Some(row) = found.and_then(|scenario| scenario.row(backend, metric)) {
                let value = escape(&quantity(row.value, &row.unit));
                let _ = writeln!(facts, "<div><dt>{name}</dt><dd>{value}</dd></div>");
            }
        }
        if !facts.is_empty() {
            let (colour, backend) = (colour(results, backend), escape(backend));
            let _ = writeln!(
                page,
                "<div class=\"card {colour}\">\n<h2>{backend}</h2>\n<dl>\n{facts}</dl>\n</div>"
            );
        }
    }
    page.push_str("</div>\n");
}

fn promises(page: &mut String, results: &Results, backend: &str) {
    let (measured, others): (Vec<&Judged>, Vec<&Judged>) =
        results.promises_of(backend).partition(|judged| judged.met.is_some());
    if measured.is_empty() {
        return;
    }
    let _ = write!(page, "<section>\n<h2>What {} promises</h2>\n", escape(backend));
    let all = measured.len() + others.len();
    page.push_str(concat!(
        "<div class=\"wide\">\n<table>\n<thead>\n<tr>",
        "<th>promise</th><th>scenario</th><th>target</th><th>seen</th><th>met</th></tr>\n",
        "</thead>\n<tbody>\n",
    ));
    for judged in measured {
        let _ = write!(page, "<tr><td>{}</td>", capitalised(&judged.about()));
        for cell in [&judged.scenario, &judged.target(), &judged.seen()] {
            let _ = write!(page, "<td>{}</td>", escape(cell));
        }
        let class = if judged.met == Some(true) { "held" } else { "unchecked" };
        let _ = writeln!(
            page,
            "<td><span class=\"pill {class}\">{}</span></td></tr>",
            escape(&judged.met().to_lowercase())
        );
    }
    page.push_str("</tbody>\n</table>\n</div>\n");
    if !others.is_empty() {
        let _ =
            writeln!(page, "<p class=\"soft\">Not measured in this run: {} of {}.</p>", others.len(), all);
    }
    page.push_str("</section>\n");
}

fn section(page: &mut String, results: &Results, scenario: &Scenario<'_>) {
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(scenario.name));
    if !scenario.about().is_empty() {
        let _ = writeln!(page, "<p class=\"soft\">{}.</p>", capitalised(scenario.about()));
    }
    let prefix = format!("{}.", scenario.name);
    let settings = results.meta.settings.iter().filter_map(|(name, value)| {
        Some(format!("{} {}", name.strip_prefix(&prefix)?.replace('_', " "), value))
    });
    let settings = settings.collect::<Vec<_>>().join("; ");
    if !settings.is_empty() {
        let _ = writeln!(page, "<p class=\"soft\">In this run: {}.</p>", escape(&settings));
    }
    let families = Family::of(scenario);
    let (large, small): (Vec<&Family<'_>>, Vec<&Family<'_>>) =
        families.iter().partition(|family| family.metrics.len() > 1 || families.len() == 1);
    for family in large {
        family.render(page, results, scenario, LARGE);
    }
    if !small.is_empty() {
        page.push_str("<div class=\"charts\">\n");
        for family in small {
            page.push_str("<div>\n");
            family.render(page, results, scenario, SMALL);
            page.push_str("</div>\n");
        }
        page.push_str("</div>\n");
    }
    table(page, results, scenario);
    page.push_str("</section>\n");
}

/// Metrics that belong into one chart: the quantiles of one thing, or one metric by itself.
struct Family<'a> {
    name: &'a str,
    metrics: Vec<&'a str>,
}

impl<'a> Family<'a> {
    fn of(scenario: &Scenario<'a>) -> Vec<Self> {
        let mut families: Vec<Self> = Vec::new();
        for metric in scenario.metrics() {
            let name = quantile(metric).map_or(metric, |(name, _)| name);
            let same = |family: &&mut Self| {
                family.name == name && scenario.unit(family.metrics[0]) == scenario.unit(metric)
            };
            match families.iter_mut().find(same) {
                Some(family) => family.metrics.push(metric),
                None => families.push(Self { name, metrics: vec![metric] }),
            }
        }
        families
    }

    fn render(&self, page: &mut String, results: &Results, scenario: &Scenario<'_>, width: f64) {
        let name = match self.metrics[..] {
            [only] => title(only),
            _ if self.name.is_empty() => "latency".into(),
            _ => title(self.name),
        };
        let chart = self.chart(results, scenario, &name, width);
        let mut notes = Vec::new();
        if chart.is_logarithmic() {
            notes.push("logarithmic scale".to_owned());
        }
        if chart.is_marked() {
            notes.push(format!("the upright mark is the {}", floor_meaning(scenario, self.metrics[0])));
        }
        notes.extend(self.metrics.iter().find_map(|metric| meaning(metric)).map(str::to_owned));
        let notes = notes.join("; ");
        let notes = if notes.is_empty() {
            notes
        } else {
            format!(" <span class=\"soft\">({})</span>", escape(&notes))
        };
        let class = if width > SMALL { "wide large" } else { "wide" };
        let _ = writeln!(
            page,
            "<h3>{}{notes}</h3>\n<div class=\"{class}\">\n{}</div>",
            capitalised(&name),
            chart.render()
        );
    }

    fn chart<'r>(&self, results: &Results, scenario: &Scenario<'r>, name: &str, width: f64) -> Chart<'r> {
        let group = |backend| {
            let bars = self.metrics.iter().filter_map(|metric| {
                let row = scenario.row(backend, metric)?;
                let name =
                    if self.metrics.len() == 1 { "" } else { quantile(metric).map_or(*metric, |(_, of)| of) };
                let note = row.ratio.map(|ratio| format!("{ratio:.2}× {}", scenario.floor_name(metric)));
                Some(Bar {
                    name: name.to_owned(),
                    value: row.value,
                    mark: row.floor,
                    note: note.unwrap_or_default(),
                })
            });
            Group { name: backend, colour: colour(results, backend), bars: bars.collect() }
        };
        let groups = scenario.backends().into_iter().map(group).filter(|group| !group.bars.is_empty());
        Chart {
            label: format!("{}: {name} by backend", scenario.name),
            unit: scenario.unit(self.metrics[0]),
            mark_name: scenario.floor_name(self.metrics[0]),
            end: (self.name == "jain").then_some(1.0),
            width,
            groups: groups.collect(),
        }
    }
}

fn table(page: &mut String, results: &Results, scenario: &Scenario<'_>) {
    let backends = scenario.backends();
    let metrics: Vec<(&str, bool)> = scenario
        .metrics()
        .into_iter()
        .map(|metric| {
            let floored =
                |backend: &&str| scenario.row(backend, metric).is_some_and(|row| row.floor.is_some());
            (metric, backends.iter().any(floored))
        })
        .collect();
    page.push_str("<div class=\"wide\">\n<table>\n<thead>\n<tr><th>backend</th>");
    for (metric, floored) in &metrics {
        let (name, unit) = (escape(&title(metric)), escape(scenario.unit(metric)));
        let _ = write!(page, "<th>{name}<small>{unit}</small></th>");
        if *floored {
            let _ = write!(
                page,
                "<th><small>{}</small></th><th><small>ratio</small></th>",
                scenario.floor_name(metric)
            );
        }
    }
    page.push_str("<th>mutual exclusion</th></tr>\n</thead>\n<tbody>\n");
    for backend in &backends {
        let _ = write!(
            page,
            "<tr><td><span class=\"dot {}\"></span>{}</td>",
            colour(results, backend),
            escape(backend)
        );
        for (metric, floored) in &metrics {
            let row = scenario.row(backend, metric);
            let cell = |of: fn(&Row) -> Option<String>| row.and_then(of).unwrap_or_else(|| "–".into());
            let _ = write!(page, "<td>{}</td>", cell(|row| Some(number(row.value))));
            if *floored {
                let floor = cell(|row| row.floor.map(number));
                let ratio = cell(|row| row.ratio.map(|ratio| format!("{ratio:.2}×")));
                let _ = write!(page, "<td><small>{floor}</small></td><td>{ratio}</td>");
            }
        }
        let verdict = scenario.verdict(backend);
        let _ =
            writeln!(page, "<td><span class=\"pill {}\">{verdict}</span></td></tr>", verdict_class(verdict));
    }
    page.push_str("</tbody>\n</table>\n</div>\n");
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
    fact("Duration", &quantity(meta.duration_s, "s"));
    fact("Processor", &format!("{}, {} cores", meta.cpu, meta.cores));
    fact("Kernel", &meta.kernel);
    fact("Redis", &meta.redis.as_deref().unwrap_or("took no part"));
    fact("ZooKeeper", &meta.zookeeper.as_deref().unwrap_or("took no part"));
    for (name, value) in &meta.settings {
        fact(name, value);
    }
    fact("Note", &meta.note);
    page.push_str("</dl>\n</section>\n");
}

/// `handoff_p50` is the quantile `p50` of `handoff`.
fn quantile(metric: &str) -> Option<(&str, &str)> {
    let (name, of) = metric.rsplit_once('_').unwrap_or(("", metric));
    let digits = of.strip_prefix('p')?;
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some((name, of))
}

fn floor_meaning(scenario: &Scenario<'_>, metric: &str) -> &'static str {
    match (scenario.name, metric) {
        (_, "longest_wait") => "ideal rotation, in which all take turns",
        ("contended", _) => "median of empty round trips meanwhile",
        ("peers", _) => "median of ours beside it",
        ("crash", _) => "ttl or session timeout",
        ("uncontended", _) => "floor, the bare commands",
        ("tasks", _) => "floor, the bare commands one pair after the other",
        ("degraded", _) => "same lock with all masters healthy",
        _ => "floor",
    }
}

fn meaning(metric: &str) -> Option<&'static str> {
    match metric {
        "jain" => Some("1 is fair"),
        "ops" | "grants_per_s" | "pairs_per_s" => Some("more is better"),
        _ => None,
    }
}

/// A backend keeps its colour, whichever others took part.
fn colour(results: &Results, backend: &str) -> String {
    const OWN: &[&str] = &["memory", "redis", "redlock", "zk"];
    let index = OWN.iter().position(|own| *own == backend).unwrap_or_else(|| {
        let backends = results.backends();
        let others = backends.iter().filter(|other| !OWN.contains(other));
        OWN.len() + others.take_while(|other| **other != backend).count() % 4
    });
    format!("b{index}")
}

fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next()
        .map_or_else(String::new, |first| escape(&format!("{}{}", first.to_uppercase(), rest.as_str())))
}

const LARGE: f64 = 960.0;
const SMALL: f64 = 450.0;

/// Scenario, metric and name of what stands on the cards.
const HIGHLIGHTS: &[(&str, &str, &str)] = &[
    ("uncontended", "p50", "acquire + release"),
    ("contended", "handoff_p50", "hand-off"),
    ("contended", "jain", "fairness"),
    ("contended", "requests_per_grant", "requests/grant"),
    ("crash", "takeover", "take-over"),
];

/// The policy forbids whatever the page might ever ask of a network.
const HEAD: &str = concat!(
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n",
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n",
    "<title>polylock: the backends side by side</title>\n<style>\n",
    include_str!("report/style.css"),
    "</style>\n</head>\n<body>\n<main>\n",
);

const HOW_TO_READ: &str = "\
<section>
<h2>How to read it</h2>
<dl class=\"read\">
<dt>p50, p90, p99</dt>
<dd>Half, 90 % and 99 % of the operations were at least this fast.</dd>
<dt>Floor and ratio</dt>
<dd>The floor is what the servers themselves take: the bare commands that any such lock must send, on the same kind of
connection, measured in turns with the lock in the same run. The ratio is what the lock adds to it: 1.10× is ten
percent. The floor of redlock has no fencing tokens; the one with tokens, beside it, shows what they cost any client. Memory
has no server: its floor is a mutex of the runtime, which has no names, tokens or leases.</dd>
<dt>Hand-off</dt>
<dd>From the moment a holder calls release until the next process has the lock, by one clock for all processes. Its
floor, ping, is the median of empty round trips to the same server under the same load. <i>To a waiter</i> is the time
until one of those processes has the lock that waited for it at the moment of the release: where a releaser may take the
lock back at once, hand-offs are quick, and those who wait have nothing of it. <i>Against bare</i>: the same processes
pass a turn on by the fewest requests that a lock could do with, in the same run.</dd>
<dt>Longest wait, Jain index</dt>
<dd>How long the unluckiest acquire took, against the ideal rotation in which all processes take turns, and how evenly
the grants were spread over the processes: 1 is perfectly even, 1/n means that one of n processes had them all.</dd>
<dt>Acquire + release per second</dt>
<dd>How often the tasks of one process get a lock that all of them want, against the bare commands, one pair after the
other.</dd>
<dt>Peers</dt>
<dd>The fight of contended with the locks of other libraries, with the delays that they come with. The floor is our
own median to a waiter in the same run, so that a ratio of 100× is a hand-off that takes a hundred times as long.</dd>
<dt>Herd</dt>
<dd>What arrives at the servers for each grant while many processes wait, and how many watch events a release sets off:
with a queue a few, with one node for all as many as wait.</dd>
<dt>Requests per grant</dt>
<dd>What arrives at the servers for each time the lock is granted, waiters included. Calls made inside a script do not
count.</dd>
<dt>Take-over</dt>
<dd>How long a lock stays closed after its holder was killed, against the ttl or session timeout that promises its end. A
ttl runs from the last renewal, so a take-over may well be quicker than it.</dd>
<dt>Memory per lock, renewal</dt>
<dd>By how much the process that holds many locks grows for each of them, and how much of one core it needs, and the
servers need, to keep all of them alive.</dd>
<dt>Degraded</dt>
<dd>The same lock on the same servers, while one of them takes requests and never answers, against all of them
healthy.</dd>
<dt>Mutual exclusion</dt>
<dd>Every scenario records who held the lock and when, and the record is searched for two holds that overlap. One overlap
is a failed run, whatever the other numbers say.</dd>
</dl>
</section>
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promises;
    use crate::results::{Mode, sample};
    use crate::scenarios::Plan;

    #[test]
    fn the_page_is_well_formed() {
        check_form(&render(&sample()));
        check_form(&render(&Results::new(sample().meta)));
    }

    #[test]
    fn the_page_loads_nothing() {
        let page = render(&sample()).to_lowercase();
        for reference in
            ["http://", "https://", "//cdn", "src=", "href=", "url(", "@import", "<script", "<link"]
        {
            assert!(!page.contains(reference), "{reference}");
        }
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
        assert_eq!(page.matches("<svg").count(), 2 + 5 + 1);
        assert!(page.contains("no two holds overlapped in any of the 10 recorded histories"));
        assert!(page.contains("In this run: hold 1 ms; processes 8."));
    }

    #[test]
    fn promises_come_first_with_what_was_seen() {
        let mut results = sample();
        assert!(!render(&results).contains("What redis promises"));
        results.push(Row::new("peers", "rslock", "waiter_p50", "us", 1e5).with_floor(200.0));
        results.promises = promises::judge(&results, &Plan::new(Mode::Full));
        let page = render(&results);
        check_form(&page);
        assert!(
            page.contains("<td>Rslock: hand-off to a waiter p50 against ours</td><td>peers</td>"),
            "{page}"
        );
        assert!(
            page.contains("<td>&gt;= 20.00x</td><td>500.00x</td><td><span class=\"pill held\">yes</span>")
        );
        assert!(page.contains("<h1>Locks over memory, redis, redlock and zk, side by side</h1>"), "{page}");
        assert!(page.contains("Not measured in this run: "));
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

    #[test]
    fn quantiles_are_told_from_other_names() {
        assert_eq!(quantile("p50"), Some(("", "p50")));
        assert_eq!(quantile("handoff_p99"), Some(("handoff", "p99")));
        assert_eq!([quantile("grants_per_s"), quantile("p"), quantile("ops"), quantile("pool")], [None; 4]);
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
