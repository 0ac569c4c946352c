//! Where a page comes from: version, commit, date and machine, and what to read.

use super::html::{Part, Table};
use super::table::thousands;
use serde_json::{Value, json};

/// Whose method it is.
pub(super) const PAPER: &str = "The method is that of David Zagardo, \u{201c}FERRET: Private Deep Learning Faster And Better Than DPSGD\u{201d}; what here differs \
from it, and what was found beside its claims, is in the source's FINDINGS.md.";

/// What made a page, where and when.
pub(super) fn facts() -> [(&'static str, Value); 4] {
    [
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("commit", json!(crate::COMMIT.unwrap_or("not known: no release of a repository"))),
        ("date", json!(today())),
        ("machine", json!(format!("{}, {} threads", processor(), rayon::current_num_threads()))),
    ]
}

/// Facts as a table: what, and what it is.
pub(super) fn table(facts: &[(String, Value)]) -> Table {
    let row = |(name, value): &(String, Value)| {
        let value = match value.as_u64() {
            Some(count) => thousands(count),
            None => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        };
        vec![name.replace('_', " ").into(), value.into()]
    };
    Table { caption: String::new(), titles: vec!["what".into(), "is".into()], rows: facts.iter().map(row).collect() }
}

/// Where to read on.
pub(super) fn links() -> Part {
    let docs = ("The library's documentation, with a guided tour", "https://docs.rs/ferret-engine");
    Part::Links(vec![(docs.0.to_owned(), docs.1.to_owned())])
}

/// Today, as `2026-11-17`, by the system's clock in UTC.
fn today() -> String {
    let days = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
    date(days as i64)
}

/// The date so many days after 1970-01-01 (the civil calendar from days, in eras of 400 years that begin in March).
fn date(days: i64) -> String {
    let z = days + 719_468;
    let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (d, m) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{m:02}-{d:02}", year + era * 400 + i64::from(m <= 2))
}

/// The processor's name where the system tells it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|n| n.1.trim().to_owned()));
    name.unwrap_or_else(|| format!("{} on {}", std::env::consts::ARCH, std::env::consts::OS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, text) in
            [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_774, "2026-11-17"), (-1, "1969-12-31")]
        {
            assert_eq!(date(days), text);
        }
    }
}
