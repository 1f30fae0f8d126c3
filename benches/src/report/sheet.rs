//! A table, and its three forms: on the console, on the page and in Markdown.

use std::fmt::Write as _;
use std::io::IsTerminal;

use comfy_table::presets::{ASCII_FULL_CONDENSED, UTF8_FULL_CONDENSED};
use comfy_table::{Attribute, CellAlignment, ContentArrangement, Table};

use super::html::escape;
use super::tone::Tone;

/// How tables are drawn on the console.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Look {
    /// Plain text, no colours: for files and pipes.
    Plain,
    /// Lines and colours, as wide as the terminal.
    Terminal,
}

impl Look {
    /// The look that fits standard output; respects `NO_COLOR`.
    pub(crate) fn of_stdout() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if wanted && std::io::stdout().is_terminal() { Self::Terminal } else { Self::Plain }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sheet {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Debug)]
struct Column {
    title: String,
    unit: String,
    kind: Kind,
    /// What the script of the page finds it by.
    key: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Words,
    Number,
    /// Belongs to the number before it.
    Part,
}

impl Sheet {
    /// Columns of words with these titles, and no rows.
    pub(crate) fn of<const N: usize>(titles: [&str; N]) -> Self {
        titles.into_iter().fold(Self::default(), Self::words)
    }

    /// Adds a column of words. On the console it is in every part of a table that is too wide.
    pub(super) fn words(self, title: &str) -> Self {
        self.column(title, "", Kind::Words, None)
    }

    /// As [`words`](Self::words), for the column of a backend that the page may choose.
    pub(super) fn chosen(self, title: &'static str) -> Self {
        self.column(title, "", Kind::Words, Some(title))
    }

    pub(super) fn number(self, title: &str, unit: &str) -> Self {
        self.column(title, unit, Kind::Number, None)
    }

    /// Adds a column that belongs to the number before it.
    pub(super) fn part(self, name: &str) -> Self {
        self.column("", name, Kind::Part, None)
    }

    fn column(mut self, title: &str, unit: &str, kind: Kind, key: Option<&'static str>) -> Self {
        self.columns.push(Column { title: title.to_owned(), unit: unit.to_owned(), kind, key });
        self
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// On the console: one table, or more to keep plain text within the width of a page.
    pub(crate) fn text(&self, look: Look) -> String {
        let tables = self.blocks(look).into_iter().map(|columns| self.block(&columns, look).to_string());
        tables.collect::<Vec<_>>().join("\n")
    }

    /// The columns of each table: all of words, and some of the numbers.
    fn blocks(&self, look: Look) -> Vec<Vec<usize>> {
        let is_words = |at: &usize| self.columns[*at].kind == Kind::Words;
        let words: Vec<usize> = (0..self.columns.len()).filter(is_words).collect();
        let ends: usize = words.iter().map(|&at| self.width(at)).sum::<usize>() + 1;
        let numbers: Vec<usize> = (0..self.columns.len()).filter(|at| !is_words(at)).collect();
        let (mut blocks, mut width) = (vec![words.clone()], ends);
        for group in numbers.chunk_by(|_, next| self.columns[*next].kind == Kind::Part) {
            let more: usize = group.iter().map(|&at| self.width(at)).sum();
            width += more;
            if look == Look::Plain && width > WIDEST && width > ends + more {
                width = ends + more;
                blocks.push(words.clone());
            }
            blocks.last_mut().expect("never empty").extend(group);
        }
        blocks.iter_mut().for_each(|block| block.sort_unstable());
        blocks
    }

    /// The width of a column with the line beside it.
    fn width(&self, at: usize) -> usize {
        let Column { title, unit, .. } = &self.columns[at];
        let cells = self.rows.iter().map(|row| row[at].words(", ").chars().count());
        cells.chain([title.chars().count(), unit.chars().count()]).max().unwrap_or(0) + " | ".len()
    }

    fn block(&self, columns: &[usize], look: Look) -> Table {
        let mut table = Table::new();
        match look {
            Look::Plain => table.load_style(ASCII_FULL_CONDENSED).force_no_tty(),
            Look::Terminal => table.load_style(UTF8_FULL_CONDENSED).enforce_styling(),
        };
        table.set_content_arrangement(match look {
            Look::Plain => ContentArrangement::Disabled,
            Look::Terminal => ContentArrangement::Dynamic,
        });
        let aligned = |at: usize, cell: comfy_table::Cell| match self.columns[at].kind {
            Kind::Words => cell,
            Kind::Number | Kind::Part => cell.set_alignment(CellAlignment::Right),
        };
        table.set_header(columns.iter().map(|&at| {
            let Column { title, unit, .. } = &self.columns[at];
            let text = if unit.is_empty() { title.clone() } else { format!("{title}\n{unit}") };
            aligned(at, comfy_table::Cell::new(text).add_attribute(Attribute::Bold))
        }));
        for row in &self.rows {
            table.add_row(columns.iter().map(|&at| {
                let cell = aligned(at, comfy_table::Cell::new(row[at].words(", ")));
                match row[at].tone() {
                    Some(tone) => cell.fg(tone.colour()),
                    None => cell,
                }
            }));
        }
        table
    }

    /// On the page; the table has these attributes.
    pub(super) fn html(&self, attributes: &str) -> String {
        let key = |column: &Column| {
            column.key.map_or_else(String::new, |key| format!(" data-column=\"{}\"", escape(key)))
        };
        let mut html = format!("<div class=\"wide\">\n<table{attributes}>\n<thead>\n<tr>");
        for column in &self.columns {
            let unit = escape(&column.unit);
            let unit = if unit.is_empty() { unit } else { format!("<small>{unit}</small>") };
            let _ = write!(html, "<th{}>{}{unit}</th>", key(column), escape(&column.title));
        }
        html.push_str("</tr>\n</thead>\n<tbody>\n");
        for row in &self.rows {
            html.push_str("<tr>");
            for (cell, column) in row.iter().zip(&self.columns) {
                let _ = write!(html, "<td{}>{}</td>", key(column), cell.html());
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody>\n</table>\n</div>\n");
        html
    }

    pub(super) fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            cells.fold(String::new(), |line, cell| line + "| " + &cell + " ") + "|\n"
        };
        let mut text = line(&mut self.columns.iter().map(|column| plain(&column.title)));
        text += &line(&mut self.columns.iter().map(|_| "---".to_owned()));
        for row in &self.rows {
            text += &line(&mut row.iter().map(Cell::markdown));
        }
        text
    }
}

/// What is in a place of a table: several pieces of text, one below the other on the page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell(Vec<Piece>);

#[derive(Clone, Debug)]
struct Piece {
    text: String,
    form: Form,
    link: Option<String>,
}

#[derive(Clone, Debug)]
enum Form {
    Plain,
    Small,
    Verdict(Tone),
    /// No text: a dot of this colour, on the page alone.
    Dot,
}

impl Cell {
    /// A number that was not measured.
    pub(super) fn none() -> Self {
        "-".into()
    }

    pub(super) fn verdict(text: impl ToString, tone: impl Into<Tone>) -> Self {
        Self::default().and(text, Form::Verdict(tone.into()))
    }

    pub(super) fn and_verdict(self, text: impl ToString, tone: Tone) -> Self {
        self.and(text, Form::Verdict(tone))
    }

    pub(super) fn and_small(self, text: impl ToString) -> Self {
        self.and(text, Form::Small)
    }

    pub(super) fn with_dot(mut self, colour: String) -> Self {
        self.0.insert(0, Piece { text: colour, form: Form::Dot, link: None });
        self
    }

    /// The last piece leads to this section of the page.
    pub(super) fn to(mut self, section: &str) -> Self {
        if let Some(last) = self.0.last_mut() {
            last.link = Some(section.to_owned());
        }
        self
    }

    fn and(mut self, text: impl ToString, form: Form) -> Self {
        self.0.push(Piece { text: text.to_string(), form, link: None });
        self
    }

    fn tone(&self) -> Option<Tone> {
        self.0.iter().find_map(|piece| match piece.form {
            Form::Verdict(tone) => Some(tone),
            _ => None,
        })
    }

    fn words(&self, between: &str) -> String {
        let shown = self.0.iter().filter(|piece| !matches!(piece.form, Form::Dot) && !piece.text.is_empty());
        shown.map(|piece| piece.text.as_str()).collect::<Vec<_>>().join(between)
    }

    pub(super) fn html(&self) -> String {
        self.0.iter().map(Piece::html).collect()
    }

    fn markdown(&self) -> String {
        let text = plain(&self.words("; "));
        if self.tone() == Some(Tone::Broken) { format!("**{text}**") } else { text }
    }
}

impl Piece {
    fn html(&self) -> String {
        let text = escape(&self.text);
        let text = match &self.link {
            Some(section) => format!("<a href=\"#{}\">{text}</a>", escape(section)),
            None => text,
        };
        match self.form {
            Form::Plain => text,
            Form::Small => format!("<small>{text}</small>"),
            Form::Verdict(tone) => tone.pill(&self.text),
            Form::Dot => format!("<span class=\"dot {text}\"></span>"),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::default().and(text, Form::Plain)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

/// Text that Markdown shows as it is.
pub(super) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '&' => {
                safe.extend(['\\', character]);
            }
            '\n' => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

/// The width of a table in plain text.
const WIDEST: usize = 120;
