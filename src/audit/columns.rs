//! Tables and prose for a terminal of a given width.

/// The width of texts that are written to files, and of a terminal that does not tell its own.
pub const WIDTH: usize = 100;

/// The least that a column of several words is narrowed to.
const LEAST: usize = 6;

/// Columns two spaces apart, a rule under the head; cells that are a number stand to the right.
///
/// Where the columns do not fit into `width`, the widest are narrowed and their cells broken between words; where not even
/// single words fit beside each other, every row becomes a list of its cells under their titles.
pub fn align(table: &[Vec<String>], width: usize) -> String {
    if !stands(table, width) {
        return list(table, width);
    }
    let (mut widths, least) = limits(table);
    while across(&widths) > width {
        let over = |column: &usize| widths[*column] > least[*column];
        let widest = (0..widths.len()).filter(over).max_by_key(|&column| widths[column]);
        widths[widest.expect("it stands at its least")] -= 1;
    }
    let mut out = String::new();
    for (index, row) in table.iter().enumerate() {
        let cells: Vec<Vec<String>> = row.iter().zip(&widths).map(|(cell, &width)| broken(cell, width)).collect();
        for at in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
            let mut line = String::new();
            for (lines, &width) in cells.iter().zip(&widths) {
                let cell = lines.get(at).map_or("", String::as_str);
                let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
                let number = index > 0 && lines.len() == 1 && cell.replace(',', "").parse::<f64>().is_ok();
                line.push_str(&if number { format!("{pad}{cell}  ") } else { format!("{cell}{pad}  ") });
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        if index == 0 {
            out.push_str(&"-".repeat(across(&widths)));
            out.push('\n');
        }
    }
    out
}

/// Whether every row of a table has a line of its own in `width`.
pub fn fits(table: &[Vec<String>], width: usize) -> bool {
    across(&limits(table).0) <= width
}

/// Whether the columns of a table fit beside each other into `width`, broken between words where they must be.
pub fn stands(table: &[Vec<String>], width: usize) -> bool {
    across(&limits(table).1) <= width
}

/// Columns of these widths, and what is between them.
fn across(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

/// The columns' widths with no cell broken, and those of their longest words, which are never broken.
fn limits(table: &[Vec<String>]) -> (Vec<usize>, Vec<usize>) {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let of = |column: usize| table.iter().filter_map(move |row| row.get(column));
    let widest = |column: usize| of(column).map(|c| c.chars().count()).max().unwrap_or(0);
    let word = |text: &String| text.split(' ').map(|w| w.chars().count()).max().unwrap_or(0);
    let least = |column: usize| of(column).map(word).max().unwrap_or(0).max(LEAST).min(widest(column));
    ((0..columns).map(widest).collect(), (0..columns).map(least).collect())
}

/// Every row as its first cell, and the others under it, each after its title.
fn list(table: &[Vec<String>], width: usize) -> String {
    let Some((titles, rows)) = table.split_first() else { return String::new() };
    let mut out = String::new();
    for row in rows {
        let mut cells = titles.iter().zip(row);
        if let Some((_, first)) = cells.next() {
            out += &(wrap(first, width) + "\n");
        }
        for (title, cell) in cells.filter(|(_, cell)| !cell.is_empty()) {
            for (i, line) in broken(&format!("{title}: {cell}"), width.saturating_sub(4)).iter().enumerate() {
                out += &format!("{}{line}\n", if i == 0 { "  " } else { "    " });
            }
        }
    }
    out
}

/// `text` in lines of at most `width` characters, broken between words; a longer word has a line of its own.
fn broken(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Paragraphs of prose in lines of at most `width` characters; what indents a paragraph indents all of its lines.
pub fn wrap(text: &str, width: usize) -> String {
    let paragraph = |line: &str| {
        let words = line.trim_start_matches(' ');
        let indent = &line[..line.len() - words.len()];
        let lines = broken(words, width.saturating_sub(indent.len()).max(LEAST));
        lines.iter().map(|l| format!("{indent}{l}")).collect::<Vec<_>>().join("\n")
    };
    text.split('\n').map(paragraph).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<Vec<String>> {
        let rows = [
            ["method", "perplexity", "promised about a record"],
            ["FERRET-2, B = 50", "12.5", "at most 0.5 nats of mutual information with a record"],
            ["DPSGD", "7.25", "(1, 1e-5)-differential privacy, one record replaced by an empty one"],
        ];
        rows.iter().map(|r| r.map(String::from).to_vec()).collect()
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_word_is_lost() {
        let count = |text: &str, c: char| text.chars().filter(|x| *x == c).count();
        let all: String = table().concat().concat();
        for width in [30, 40, 60, 80, 100, 200] {
            let text = align(&table(), width);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line:?}");
            }
            for c in ['F', 'D', '5', 'f', '('] {
                // A list repeats its titles.
                assert!(count(&text, c) >= count(&all, c), "{width}, {c}: {text}");
            }
        }
    }

    #[test]
    fn a_wide_terminal_has_a_line_a_row_and_numbers_to_the_right() {
        let text = align(&table(), 200);
        assert_eq!(text.lines().count(), 4);
        let at = |row: usize, what: &str| text.lines().nth(row).unwrap().find(what).unwrap();
        assert_eq!(at(2, "12.5") + 4, at(3, "7.25") + 4);
        assert_eq!(at(2, "12.5") + 4, at(0, "perplexity") + "perplexity".len());
    }

    #[test]
    fn prose_keeps_its_paragraphs_and_indents() {
        let text = "one two three four\n\n  five six seven eight nine";
        assert_eq!(wrap(text, 12), "one two\nthree four\n\n  five six\n  seven\n  eight nine");
        assert_eq!(wrap("unbreakablyLongWord a", 12), "unbreakablyLongWord\na");
    }
}
