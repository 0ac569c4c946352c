//! The report: one self-contained page, light and dark, no network.

use super::arm::Outcome;
use super::plot::{Axis, Bar, BarChart, Chart, Fired, Series, raster, roc};
use super::table;
use std::fmt::Write;

/// What the page says besides its figures.
pub struct Page {
    /// Heading.
    pub title: String,
    /// What was run, in sentences.
    pub intro: Vec<String>,
    /// The command that repeats it.
    pub command: String,
}

const STYLE: &str = "
:root { --paper: #fdfdfb; --ink: #1d1f21; --muted: #60656b; --line: #d8d9d5; --accent: #1f6feb; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #e4e6e8; --muted: #9aa0a6; --line: #34383c; --accent: #6ea8fe; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: .5rem 0; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p, li { max-width: 46rem; } .muted { color: var(--muted); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible { outline: 2px solid var(--accent); }
th[aria-sort=ascending] button::after { content: ' \\25B2'; } th[aria-sort=descending] button::after { content: ' \\25BC'; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1.2rem; } .plots svg { width: 100%; height: auto; }
pre { overflow-x: auto; padding: .7rem; border: 1px solid var(--line); border-radius: .4rem; } .alarm { color: #c62828; font-weight: 600; }";

const SORT: &str = "
for (const table of document.querySelectorAll('table')) {
  const heads = [...table.querySelectorAll('th')];
  heads.forEach((th, column) => th.querySelector('button').addEventListener('click', () => {
    const up = th.getAttribute('aria-sort') !== 'ascending';
    heads.forEach(h => h.removeAttribute('aria-sort'));
    th.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const key = row => { const text = row.cells[column].textContent; const x = parseFloat(text); return Number.isNaN(x) ? text : x; };
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (typeof x === 'number' && typeof y === 'number') return x - y;
      return String(x).localeCompare(String(y));
    });
    if (!up) rows.reverse();
    table.tBodies[0].append(...rows);
  }));
}";

/// `text` with the characters that HTML reads otherwise replaced.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The whole page.
pub fn render(page: &Page, outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{STYLE}</style></head>\n<body><h1>{0}</h1>\n",
        escape(&page.title)
    );
    for sentence in &page.intro {
        let _ = writeln!(out, "<p>{}</p>", escape(sentence));
    }
    out += "<h2>Every method, side by side</h2>\n<div class=\"scroll\"><table><thead><tr>";
    for title in table::TITLES {
        let _ = write!(out, "<th scope=\"col\"><button type=\"button\">{}</button></th>", escape(title));
    }
    out += "</tr></thead><tbody>\n";
    for o in outcomes {
        out += "<tr>";
        for cell in table::cells(o) {
            let class = if cell.contains("ALARM") { " class=\"alarm\"" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escape(&cell));
        }
        out += "</tr>\n";
    }
    out += "</tbody></table></div>\n<p class=\"muted\">Nats of mutual information and (eps, delta) are different units: no \
            number of one column follows from the other kind. AUC and advantage are of one attack, by loss relative to the base \
            model's; an attack that finds nothing proves nothing. The bound is what the charge permits on average when membership is a \
            coin flip per candidate, as it was here.</p>\n<h2>Pictures</h2>\n<div class=\"plots\">\n";
    out += &plots(outcomes);
    let _ = write!(
        out,
        "</div>\n<h2>How to repeat it</h2>\n<pre>{}</pre>\n<script>{SORT}</script>\n</body></html>\n",
        escape(&page.command)
    );
    out
}

fn plots(outcomes: &[Outcome]) -> String {
    let trained = || outcomes.iter().filter(|o| !o.curve.is_empty());
    let mut out = String::new();
    let mut curves = Chart::new("Held-out perplexity over the run")
        .x(Axis::linear("share of the run").range(0.0, 1.0))
        .y(Axis::log("perplexity on held-out records"));
    for o in trained() {
        let points = o.curve.iter().map(|&(x, loss)| (x, loss.exp())).collect();
        curves = curves.series(Series::line(&o.name, points));
    }
    out += &curves.svg();
    let mut gap = BarChart::new("Perplexity", Axis::log("perplexity"), &["members", "non-members"]);
    let mut leak =
        BarChart::new("Attack's advantage and its bound", Axis::linear("advantage").range(0.0, 1.0), &["advantage"]);
    let mut cost = BarChart::new("Record gradients computed", Axis::log("gradients"), &["gradients"]);
    let bar = |value| Some(Bar { value, interval: None, bound: None });
    for o in outcomes {
        gap = gap.row(&o.name, vec![bar(o.train_loss.exp()), bar(o.test_loss.exp())]);
        let bound = o.bound.why_not().is_none().then(|| o.bound.advantage());
        leak = leak
            .row(&o.name, vec![Some(Bar { value: o.attack.advantage, interval: Some(o.attack.advantage_ci), bound })]);
    }
    for o in trained() {
        cost = cost.row(&o.name, vec![bar(o.sample_gradients.max(1) as f64)]);
    }
    out += &gap.svg();
    out += &leak.svg();
    let rocs: Vec<_> = trained().map(|o| (o.name.clone(), o.roc.curve())).collect();
    out += &roc("ROC of the attack by loss", &rocs, &[], None);
    out += &roc("The same, low false-positive rates", &rocs, &[], Some(1e-3));
    out += &cost.svg();
    for o in trained() {
        if let Some(raster_of) = &o.fired {
            let fired: Vec<Fired> = raster_of
                .fired
                .iter()
                .map(|&(step, group, plus)| Fired { step: step.into(), group: group.into(), plus })
                .collect();
            out += &raster(&format!("Which group fired when: {}", o.name), o.steps.1, raster_of.groups, &fired);
        }
    }
    out
}
