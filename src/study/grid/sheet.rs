//! A table as text, LaTeX and part of a page.

use crate::audit::columns::{align, wrap};
use crate::study::html;

/// A table with what must be said under it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// What stands above the table.
    pub caption: String,
    /// Heads of the columns.
    pub titles: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
    /// What must be said under the table.
    pub note: String,
}

impl Sheet {
    /// For a terminal of this width.
    pub fn text(&self, width: usize) -> String {
        let mut table = vec![self.titles.clone()];
        table.extend(self.rows.iter().cloned());
        let note = if self.note.is_empty() { String::new() } else { format!("{}\n", self.note) };
        let (caption, note) = (wrap(&self.caption, width), wrap(&note, width));
        format!("{caption}\n\n{}{note}\n", align(&table, width))
    }

    /// A `table` environment; needs no package.
    pub fn latex(&self) -> String {
        let line = |cells: &[String]| cells.iter().map(|c| latex(c)).collect::<Vec<_>>().join(" & ") + " \\\\\n";
        let mut out = format!(
            "\\begin{{table}}\n\\caption{{{}}}\n\\begin{{tabular}}{{{}}}\n\\hline\n{}\\hline\n",
            latex(&format!("{} {}", self.caption, self.note)),
            "l".repeat(self.titles.len()),
            line(&self.titles)
        );
        for row in &self.rows {
            out += &line(row);
        }
        out + "\\hline\n\\end{tabular}\n\\end{table}\n\n"
    }

    /// For a page: the table and its note.
    pub fn parts(&self) -> Vec<html::Part> {
        let rows = self.rows.iter().map(|row| row.iter().map(|c| cell(c)).collect()).collect();
        let table = html::Table { caption: self.caption.clone(), titles: self.titles.clone(), rows };
        let mut parts = vec![html::Part::Table(table)];
        if !self.note.is_empty() {
            parts.push(html::Part::Prose(self.note.clone()));
        }
        parts
    }
}

fn cell(text: &str) -> html::Cell {
    html::Cell { alarm: text.contains("ALARM") || text.contains("diverged"), ..text.into() }
}

/// `text` with LaTeX's own characters escaped.
pub fn latex(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '%' | '&' | '#' | '_' | '$' | '{' | '}' => out.extend(['\\', c]),
            '\\' => out.push_str("\\textbackslash{}"),
            '~' => out.push_str("\\textasciitilde{}"),
            '^' => out.push_str("\\textasciicircum{}"),
            '<' => out.push_str("$<$"),
            '>' => out.push_str("$>$"),
            '±' => out.push_str("$\\pm$"),
            '−' => out.push('-'),
            c => out.push(c),
        }
    }
    out
}
