//! The results as one self-contained HTML page: no script, no font, no network.

mod chart;
mod html;

use std::fmt::{Display, Write as _};
use std::io;
use std::path::{Path, PathBuf};

use self::chart::{Bar, Chart, Group};
use self::html::escape;
use crate::peers::Peer;
use crate::results::labels::{meaning, number, quantity, title};
use crate::results::{ExclusionVerdict, Meta, PromiseResult, Results, Row, Scenario, write_file};

/// Writes `report.html` into `folder`, which is created if necessary, and returns the path.
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

fn headline(results: &Results) -> String {
    let mut backends = results.backends();
    backends.retain(|backend| Peer::named(backend).is_none());
    match backends[..] {
        [] => "Nothing was measured".into(),
        [only] => format!("Locks over {only}"),
        [ref all @ .., last] => format!("Locks over {} and {last}, side by side", all.join(", ")),
    }
}

fn verdict_class(verdict: ExclusionVerdict) -> &'static str {
    match verdict {
        ExclusionVerdict::Held => "held",
        ExclusionVerdict::Broken(_) => "broken",
        ExclusionVerdict::Unchecked => "unchecked",
    }
}

fn verdict_line(results: &Results, verdict: ExclusionVerdict) -> String {
    let scenarios = results.scenarios();
    let pairs = || {
        scenarios.iter().flat_map(|scenario| {
            let of = |backend| (scenario.name, backend, scenario.verdict(backend));
            scenario.backends().into_iter().map(of)
        })
    };
    let places = |wanted: fn(ExclusionVerdict) -> bool| {
        let named = pairs().filter(|(.., verdict)| wanted(*verdict));
        named.map(|(scenario, backend, _)| format!("{scenario} on {backend}")).collect::<Vec<_>>().join(", ")
    };
    match verdict {
        ExclusionVerdict::Held => format!(
            "Mutual exclusion held: no two holds overlapped in any of the {} recorded histories.",
            pairs().count()
        ),
        ExclusionVerdict::Broken(overlaps) => format!(
            "Mutual exclusion was BROKEN: {} ({}).",
            if overlaps == 1 { "1 overlap".to_owned() } else { format!("{overlaps} overlaps") },
            places(|verdict| matches!(verdict, ExclusionVerdict::Broken(_)))
        ),
        ExclusionVerdict::Unchecked if scenarios.is_empty() => "Mutual exclusion was not checked.".into(),
        ExclusionVerdict::Unchecked => format!(
            "Mutual exclusion was not checked everywhere: no verdict for {}.",
            places(|verdict| verdict == ExclusionVerdict::Unchecked)
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
    let (measured, others): (Vec<&PromiseResult>, Vec<&PromiseResult>) =
        results.promises_of(backend).partition(|result| result.met.is_some());
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
    for result in measured {
        let _ = write!(page, "<tr><td>{}</td>", capitalised(&result.about()));
        for cell in [&result.scenario, &result.target(), &result.seen()] {
            let _ = write!(page, "<td>{}</td>", escape(cell));
        }
        let class = if result.met == Some(true) { "held" } else { "unchecked" };
        let _ = writeln!(
            page,
            "<td><span class=\"pill {class}\">{}</span></td></tr>",
            escape(&result.met().to_lowercase())
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

/// The metrics of one chart: the quantiles of one thing, or a single metric.
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
            notes.push(format!("the upright mark is the {}", scenario.floor_meaning(self.metrics[0])));
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
    fact("Redis", &meta.redis.as_deref().unwrap_or("not measured"));
    fact("ZooKeeper", &meta.zookeeper.as_deref().unwrap_or("not measured"));
    for (name, value) in &meta.settings {
        fact(name, value);
    }
    fact("Note", &meta.note);
    page.push_str("</dl>\n</section>\n");
}

/// Splits `handoff_p50` into `handoff` and its quantile `p50`.
fn quantile(metric: &str) -> Option<(&str, &str)> {
    let (name, of) = metric.rsplit_once('_').unwrap_or(("", metric));
    let digits = of.strip_prefix('p')?;
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some((name, of))
}

/// The colour of a backend, the same whichever others are measured.
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

/// The numbers on the cards: scenario, metric and name.
const HIGHLIGHTS: &[(&str, &str, &str)] = &[
    ("uncontended", "p50", "acquire + release"),
    ("contended", "handoff_p50", "hand-off"),
    ("contended", "jain", "fairness"),
    ("contended", "requests_per_grant", "requests/grant"),
    ("crash", "takeover", "take-over"),
];

/// The policy forbids all network access of the page.
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
<dd>The floor is the time of the servers: the bare commands that any such lock must send, on the same kind of connection,
measured in turn with the lock in the same run. The ratio shows what the lock adds: 1.10× is ten percent. The floor of
redlock has no fencing tokens; a second one with tokens shows what they cost any client. Memory has no server: its floor is
a mutex of the runtime, which has no names, tokens or leases.</dd>
<dt>WorkerHandle-off</dt>
<dd>From the call of release until the next process has the lock, by one clock for all processes. The floor, ping, is the
median of empty round trips to the same server under the same load. <i>To a waiter</i> is the time until a process that
waited at the time of the release has the lock: where the releaser may acquire the lock again at once, hand-offs are fast
but waiters starve. <i>Against bare</i>: the same processes hand over by the fewest requests that a lock needs, in the same
run.</dd>
<dt>Longest wait, Jain index</dt>
<dd>The longest acquire, against the ideal rotation in which all processes take turns, and how evenly the grants were spread
over the processes: 1 is perfectly even, 1/n means that one of n processes had them all.</dd>
<dt>Acquire + release per second</dt>
<dd>The rate at which the tasks of one process acquire and release a lock for which all of them contend, against the bare
commands, one pair after the other.</dd>
<dt>Peers</dt>
<dd>As contended, with the locks of other libraries and their default delays. The floor is the median of our own lock to a
waiter in the same run, so that a ratio of 100× is a hand-off that takes a hundred times as long.</dd>
<dt>Herd</dt>
<dd>The requests of each grant while many processes wait, and the watch events of each release: a few with a queue, one per
waiter with a single node.</dd>
<dt>Requests per grant</dt>
<dd>The requests that arrive at the servers for each grant, those of waiters included. Calls inside a script do not
count.</dd>
<dt>Take-over</dt>
<dd>The time from the death of a holder until a waiter has the lock, against the ttl or session timeout. A ttl runs from the
last renewal, so that a take-over may take less.</dd>
<dt>Memory per lock, renewal</dt>
<dd>The memory per lock of a process that holds many locks, and the share of one core that it and the servers need to renew
them.</dd>
<dt>Degraded</dt>
<dd>The same lock while one master accepts requests and never answers, against all masters healthy.</dd>
<dt>Mutual exclusion</dt>
<dd>Every scenario records its history, which is searched for overlapping holds. One overlap fails the run, whatever the
other numbers say.</dd>
</dl>
</section>
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::promises;
    use crate::results::{Mode, sample};

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
    fn promises_come_first_with_the_measured_numbers() {
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
    fn quantiles_are_recognised() {
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
