//! The report: one self-contained page, light and dark, no network, readable on a phone and on paper.
//!
//! A [`Page`] is titles, prose, tables, plots, verdicts and statements; [`render`] writes it with its style and the few
//! lines of script that sort tables. All texts are plain: what HTML would read as markup is escaped, and `` `code` `` in
//! prose is set as code. Only [`Part::Plots`] is taken as it is: elements from [`super::plot`].
//!
//! ```
//! use ferret::study::html::{Page, Part, Section, Table, render};
//! let table = Table {
//!     caption: "Two runs".into(),
//!     titles: vec!["method".into(), "perplexity".into()],
//!     rows: vec![vec!["FERRET-2".into(), "53.1".into()], vec!["DPSGD".into(), "2.5".into()]],
//! };
//! let section = Section { id: "runs".into(), title: "Runs".into(), parts: vec![Part::Table(table)] };
//! let page = Page { title: "A < B".into(), intro: vec![], sections: vec![section] };
//! assert!(render(&page).contains("<h1>A &lt; B</h1>"));
//! ```

use std::collections::HashSet;
use std::fmt::Write;

/// A report that needs no other file: heading, paragraphs, sections.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Heading.
    pub title: String,
    /// What was run, a paragraph each.
    pub intro: Vec<String>,
    /// The page's body. With more than three, a table of contents stands before them.
    pub sections: Vec<Section>,
}

/// A titled part of a page.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// What links to it name; made unique and fit for an address if it is not.
    pub id: String,
    /// Heading.
    pub title: String,
    /// What it holds, in order.
    pub parts: Vec<Part>,
}

/// A piece of a section.
#[derive(Debug, Clone)]
pub enum Part {
    /// Text; an empty line begins a new paragraph.
    Prose(String),
    /// A table that sorts.
    Table(Table),
    /// SVG elements side by side, as many as fit.
    Plots(Vec<String>),
    /// Whether a hypothesis holds.
    Verdict {
        /// The hypothesis.
        name: String,
        /// `holds`, `fails`, `undecided`, with or without more words.
        outcome: String,
        /// The test that decided and its figures.
        test: String,
    },
    /// A long text behind its summary: privacy statements.
    Statement {
        /// What is always shown.
        summary: String,
        /// What is shown when opened; its line breaks are kept.
        text: String,
    },
    /// Commands or other text set as code.
    Code(String),
    /// Links: what is said, and where it leads. They are followed only by a click.
    Links(Vec<(String, String)>),
    /// What the page knows, as JSON, behind a button that saves it.
    Data {
        /// The file's name.
        name: String,
        /// The JSON.
        json: String,
    },
}

/// A table; every row has as many cells as there are titles (missing ones are left empty).
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Said above it.
    pub caption: String,
    /// Heads of the columns.
    pub titles: Vec<String>,
    /// Cells, row by row, one a title.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    /// What it says.
    pub text: String,
    /// What it is sorted by; its text without it.
    pub sort: Option<f64>,
    /// Whether it calls for attention.
    pub alarm: bool,
}

impl From<String> for Cell {
    /// A text that begins with a number, as in `0.513 [0.49, 0.53]` or `12,000`, is sorted by it.
    fn from(text: String) -> Self {
        Self { sort: leading_number(&text), text, alarm: false }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// A cell as it is shown: a number's interval has a line of its own, so that a table of many is no wider than its page.
fn said(cell: &Cell) -> String {
    let text = escape(&cell.text).replace(" ± ", "\u{a0}±\u{a0}");
    let parts = text.split_once(" [").and_then(|(value, rest)| Some((value, rest.split_once(']')?)));
    let Some((value, (range, rest))) = parts.filter(|_| cell.sort.is_some()) else { return text };
    format!("{value} <span class=\"range\">[{range}]</span>{rest}")
}

fn leading_number(text: &str) -> Option<f64> {
    let word = text.split_whitespace().next()?.replace(',', "").replace('\u{2212}', "-");
    let rest = word.strip_prefix('-').unwrap_or(&word);
    let number = match rest {
        "inf" | "\u{221e}" => f64::INFINITY,
        _ if rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') => rest.trim_end_matches('%').parse().ok()?,
        _ => return None,
    };
    Some(if rest.len() < word.len() { -number } else { number })
}

const STYLE: &str = include_str!("html/page.css");
const SORT: &str = include_str!("html/sort.js");

/// `text` with the characters that HTML reads otherwise replaced.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The whole page.
pub fn render(page: &Page) -> String {
    let title = escape(&page.title);
    // The empty icon keeps browsers from asking a server for one.
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<link \
         rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}</style></head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    for text in &page.intro {
        prose(&mut out, text);
    }
    let ids = ids(&page.sections);
    if page.sections.len() > 3 {
        out += "<nav aria-label=\"Contents\"><ol>\n";
        for (section, id) in page.sections.iter().zip(&ids) {
            let _ = writeln!(out, "<li><a href=\"#{id}\">{}</a></li>", escape(&section.title));
        }
        out += "</ol></nav>\n";
    }
    for (section, id) in page.sections.iter().zip(&ids) {
        let _ = writeln!(out, "<section id=\"{id}\">\n<h2>{}</h2>", escape(&section.title));
        for part in &section.parts {
            write_part(&mut out, part);
        }
        out += "</section>\n";
    }
    let _ = write!(out, "</main>\n<script>\n{SORT}</script>\n</body></html>\n");
    out
}

/// Each section's id: letters, digits and hyphens, no two alike.
fn ids(sections: &[Section]) -> Vec<String> {
    let mut taken = HashSet::new();
    let mut unique = |section: &Section| {
        let plain: String =
            section.id.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
        let stem = if plain.trim_matches('-').is_empty() { "section".to_owned() } else { plain };
        let mut id = stem.clone();
        let mut count = 1;
        while !taken.insert(id.clone()) {
            count += 1;
            id = format!("{stem}-{count}");
        }
        id
    };
    sections.iter().map(&mut unique).collect()
}

/// Paragraphs, with `` `code` `` where the backticks pair up.
fn prose(out: &mut String, text: &str) {
    for paragraph in text.split("\n\n").map(str::trim).filter(|p| !p.is_empty()) {
        let pieces: Vec<&str> = paragraph.split('`').collect();
        *out += "<p>";
        if pieces.len() % 2 == 1 {
            for (index, piece) in pieces.iter().enumerate() {
                let (open, close) = if index % 2 == 1 { ("<code>", "</code>") } else { ("", "") };
                let _ = write!(out, "{open}{}{close}", escape(piece));
            }
        } else {
            *out += &escape(paragraph);
        }
        *out += "</p>\n";
    }
}

fn write_part(out: &mut String, part: &Part) {
    match part {
        Part::Prose(text) => prose(out, text),
        Part::Table(table) => write_table(out, table),
        Part::Plots(plots) => {
            *out += "<div class=\"plots\">\n";
            for svg in plots {
                let _ = writeln!(out, "<figure>{svg}</figure>");
            }
            *out += "</div>\n";
        }
        Part::Verdict { name, outcome, test } => {
            let class = match outcome.split(|c: char| !c.is_alphabetic()).next() {
                Some("holds") => " good",
                Some("fails") => " bad",
                _ => "",
            };
            let _ = writeln!(
                out,
                "<div class=\"verdict{class}\"><strong>{}</strong><span class=\"name\">{}</span><span \
                 class=\"test\">{}</span></div>",
                escape(outcome),
                escape(name),
                escape(test)
            );
        }
        Part::Statement { summary, text } => {
            let _ = writeln!(
                out,
                "<details><summary>{}</summary><pre>{}</pre></details>",
                escape(summary),
                escape(text.trim_end())
            );
        }
        Part::Links(links) => {
            *out += "<ul class=\"links\">\n";
            for (text, to) in links {
                let _ = writeln!(out, "<li><a href=\"{}\" rel=\"noreferrer\">{}</a></li>", escape(to), escape(text));
            }
            *out += "</ul>\n";
        }
        Part::Data { name, json } => {
            // Nothing in a string of JSON needs a `<`: written otherwise, it cannot end the element.
            let _ = writeln!(
                out,
                "<p class=\"data\"><button type=\"button\" data-name=\"{}\">Save everything as JSON</button></p>\n<script \
                 type=\"application/json\" class=\"data\">{}</script>",
                escape(name),
                json.replace('<', "\\u003c")
            );
        }
        Part::Code(text) => {
            let _ = writeln!(out, "<pre><code>{}</code></pre>", escape(text.trim_end()));
        }
    }
}

fn write_table(out: &mut String, table: &Table) {
    // A name and what it has: read along the line, as words are.
    let pair = table.titles.len() == 2;
    // A column of numbers is set flush right and not broken, unless it has long words beside them.
    let numeric: Vec<bool> = (0..table.titles.len())
        .map(|column| {
            let cells = || table.rows.iter().filter_map(|row| row.get(column)).filter(|c| !c.text.is_empty());
            let short = cells().all(|c| c.text.chars().count() < 25);
            !pair && short && 2 * cells().filter(|c| c.sort.is_some()).count() > cells().count()
        })
        .collect();
    let class = |classes: &[(&str, bool)]| {
        let chosen: Vec<&str> = classes.iter().filter(|c| c.1).map(|c| c.0).collect();
        if chosen.is_empty() { String::new() } else { format!(" class=\"{}\"", chosen.join(" ")) }
    };
    // Focusable, so that the arrow keys scroll what is cut off; narrow screens show a card a row.
    let caption = escape(&table.caption);
    let _ = write!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table{}>",
        if caption.is_empty() { "table" } else { &caption },
        class(&[("pair", pair)])
    );
    if !caption.is_empty() {
        let _ = write!(out, "<caption><span>{caption}</span></caption>");
    }
    *out += "<thead><tr>";
    for (title, &n) in table.titles.iter().zip(&numeric) {
        let class = class(&[("n", n)]);
        let _ = write!(out, "<th scope=\"col\"{class}><button type=\"button\">{}</button></th>", escape(title));
    }
    *out += "</tr></thead><tbody>\n";
    let empty = Cell::default();
    for row in &table.rows {
        *out += "<tr>";
        for (column, &n) in numeric.iter().enumerate() {
            let cell = row.get(column).unwrap_or(&empty);
            let class = class(&[("n", n), ("long", !n && cell.text.chars().count() > 40), ("alarm", cell.alarm)]);
            let sort = match cell.sort.filter(|x| !x.is_nan()) {
                Some(f64::INFINITY) => " data-sort=\"Infinity\"".to_owned(),
                Some(f64::NEG_INFINITY) => " data-sort=\"-Infinity\"".to_owned(),
                Some(x) => format!(" data-sort=\"{x}\""),
                None => String::new(),
            };
            let title = escape(&table.titles[column]);
            let _ = write!(out, "<td{class}{sort} data-title=\"{title}\">{}</td>", said(cell));
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table></div>\n";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_the_front_of_a_cell() {
        let sort = |text: &str| Cell::from(text).sort;
        assert_eq!(sort("0.513 [0.49, 0.53]"), Some(0.513));
        assert_eq!(sort("12,000"), Some(12_000.0));
        assert_eq!(sort("\u{2212}1e-3"), Some(-1e-3));
        assert_eq!(sort("2%"), Some(2.0));
        assert_eq!(sort("inf"), Some(f64::INFINITY));
        for text in ["", "none", "FERRET-2", "(0.5, 1e-5)", "nan", "infinity", "-", "0.5x", "every gradient"] {
            assert_eq!(sort(text), None, "{text}");
        }
    }

    #[test]
    fn text_is_never_markup() {
        let evil = "</pre><script>alert(\"1\")</script> & `x<y`";
        let parts = vec![
            Part::Prose(evil.into()),
            Part::Code(evil.into()),
            Part::Statement { summary: evil.into(), text: evil.into() },
            Part::Verdict { name: evil.into(), outcome: evil.into(), test: evil.into() },
            Part::Table(Table { caption: evil.into(), titles: vec![evil.into()], rows: vec![vec![evil.into()]] }),
        ];
        let section = Section { id: evil.into(), title: evil.into(), parts };
        let page = Page { title: evil.into(), intro: vec![evil.into()], sections: vec![section; 4] };
        let html = render(&page);
        assert_eq!(html.matches("<script>").count(), 1, "the page's own");
        assert!(html.contains("<code>x&lt;y</code>"));
        assert!(!html.contains("alert(\"1\")"));
    }

    #[test]
    fn contents_appear_from_four_sections_and_link_to_them() {
        let section = |id: &str| Section { id: id.into(), title: format!("Title {id}"), parts: vec![] };
        let page = |ids: &[&str]| Page { sections: ids.iter().map(|id| section(id)).collect(), ..Page::default() };
        assert!(!render(&page(&["a", "b", "c"])).contains("<nav"));
        let html = render(&page(&["a", "a", "What ran?", ""]));
        for id in ["a", "a-2", "what-ran-", "section"] {
            assert!(
                html.contains(&format!("href=\"#{id}\"")) && html.contains(&format!("<section id=\"{id}\"")),
                "{id}"
            );
        }
    }

    #[test]
    fn short_rows_are_filled_up_and_alarms_marked() {
        let alarm = Cell { alarm: true, ..Cell::from("0.4 ALARM") };
        let table = Table {
            caption: String::new(),
            titles: ["a", "b", "c"].map(String::from).to_vec(),
            rows: vec![
                vec!["x".into(), alarm],
                vec!["y".into()],
                vec!["z".into(), Cell { sort: Some(f64::NAN), ..Cell::from("?") }],
            ],
        };
        let mut out = String::new();
        write_table(&mut out, &table);
        assert_eq!(out.matches("<td").count(), 9);
        assert!(out.contains("<td class=\"n alarm\" data-sort=\"0.4\" data-title=\"b\">"));
        let cell = said(&"7.4 ± 0.1 [7.3, 7.5] | 9".into());
        assert_eq!(cell, "7.4\u{a0}±\u{a0}0.1 <span class=\"range\">[7.3, 7.5]</span> | 9");
        assert!(!out.contains("NaN"));
    }

    #[test]
    fn nothing_is_fetched() {
        let html = render(&Page::default());
        for word in ["http:", "https:", "url(", "@import", "src="] {
            assert!(!html.contains(word), "{word}");
        }
    }
}
