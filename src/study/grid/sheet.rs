//! A table as text, LaTeX and part of a page.

use crate::audit::columns::{align, fits, stands, wrap};
use crate::study::html;

/// A table with what must be said under it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// What stands above the table.
    pub caption: String,
    /// Heads of the columns.
    pub titles: Vec<String>,
    /// Cells, row by row, under the titles.
    pub rows: Vec<Vec<String>>,
    /// What must be said under the table.
    pub note: String,
}

/// A column of a table: its head, and what it says of a row.
pub type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

impl Sheet {
    /// Of `rows`, column by column.
    pub fn of<T>(caption: String, columns: &[Column<T>], rows: &[T], note: String) -> Self {
        let cells = |row: &T| columns.iter().map(|(_, says)| says(row)).collect();
        let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        Self { caption, titles, rows: rows.iter().map(cells).collect(), note }
    }

    /// For a terminal of this width. Where it is too narrow for a line a row, least and largest are left to the page and to the files.
    pub fn text(&self, width: usize) -> String {
        let mut table = vec![self.titles.clone()];
        table.extend(self.rows.iter().cloned());
        let mut note = if self.note.is_empty() { String::new() } else { format!("{}\n", self.note) };
        if !fits(&table, width) {
            table.iter_mut().flatten().for_each(|cell| *cell = without_range(cell));
            let whole: Vec<Vec<String>> =
                table.iter().map(|row| row.iter().map(|cell| cell.replace(" ± ", "\u{a0}±\u{a0}")).collect()).collect();
            // In one piece, where that leaves room for the other columns.
            if stands(&whole, width) {
                table = whole;
            }
            note = note.replace("± SD [least, largest]", "± SD");
        }
        let (caption, note) = (wrap(&self.caption, width), wrap(&note, width));
        format!("{caption}\n\n{}{note}\n", align(&table, width).replace('\u{a0}', " "))
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

/// `mean ± SD [least, largest]` as `mean ± SD`.
fn without_range(cell: &str) -> String {
    let mut out = cell.to_owned();
    while let Some(start) = out.find('±').and_then(|at| out[at..].find(" [").map(|more| at + more)) {
        let Some(end) = out[start..].find(']') else { break };
        out.replace_range(start..=start + end, "");
    }
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_and_its_spread_stay_together_and_what_does_not_fit_is_left_out_and_not_spoken_of() {
        let row = |name: &str| {
            let spread = "31.46 ± 1.14 [30.20, 32.44]";
            [name, spread, "0.494 ± 0.008 [0.487, 0.503]", "12.1 ± 0.3 [11.8, 12.5] | 45.3"].map(String::from).to_vec()
        };
        let sheet = Sheet {
            caption: "At one budget".into(),
            titles: ["method", "test ppl", "AUC", "paper's"].map(String::from).to_vec(),
            rows: vec![row("FERRET-k, usual k"), row("DPSGD")],
            note: "Mean ± SD [least, largest] over 3 seeds.".into(),
        };
        let wide = sheet.text(200);
        assert!(wide.contains("31.46 ± 1.14 [30.20, 32.44]") && wide.contains("[least, largest]"), "{wide}");
        let narrow = sheet.text(80);
        for line in narrow.lines() {
            assert!(line.chars().count() <= 80 && !line.trim_end().ends_with('±'), "{line:?}");
        }
        for piece in ["31.46 ± 1.14", "0.494 ± 0.008", "12.1 ± 0.3 | 45.3", "Mean ± SD over 3 seeds."] {
            assert!(narrow.contains(piece), "{piece}: {narrow}");
        }
        assert!(!narrow.contains('[') && narrow.lines().filter(|l| l.contains('±')).count() == 3, "{narrow}");
    }
}
