//! Plots as self-contained SVG, written by hand: no dependency, no script, no font file.
//!
//! Every function returns one `<svg>` element that can stand in a page or in a file of its own. Colours are CSS
//! variables with a light and a dark set, chosen by `prefers-color-scheme`; a page may override them on `svg.fp`
//! (`--fp-ink`, `--fp-muted`, `--fp-grid`, `--fp-paper`, `--fp-0` to `--fp-7`). Series differ in marker and dash as well
//! as in colour. Title and description are read out by screen readers.
//!
//! Why by hand: two well-kept crates were looked at in its place, plotters 0.3.7 and charming 0.6.0. plotters' SVG writes every shape with its
//! colour as a number in an attribute, no class, no `<title>`: a dark set, tooltips and a legend
//! that wraps on a phone would need a backend of our own under its axes, by our estimate of about the size of this module (990 lines without tests).
//! charming is a description that ECharts draws: 1.03 MB of script in every page, or V8 (deno_core) in the build to draw without
//! one. Both draw ROC curves in fewer lines than this; neither draws one that reads in the dark without a script.
//!
//! ```
//! use ferret::study::plot::{Axis, Chart, Series};
//! let svg = Chart::new("Perplexity against budget")
//!     .x(Axis::log("budget [nats]"))
//!     .y(Axis::linear("test perplexity"))
//!     .series(Series::line("FERRET-2", vec![(0.1, 60.0), (0.5, 53.0), (2.0, 41.0)]).markers())
//!     .svg();
//! assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
//! ```

mod axis;
mod bars;
mod chart;
mod drawing;
mod page;
mod raster;

pub use axis::{Axis, Scale};
pub use bars::{Bar, BarChart};
pub use chart::{Chart, Series};
pub use drawing::group_and_bit;
pub use raster::{FiredBit, raster};

/// A receiver operating characteristic: attacks' curves, bounds' curves dashed, the diagonal of chance, on square axes.
/// `log` draws both axes logarithmically from `floor` (1e-3 or so) to 1, where low false-positive rates are visible.
pub fn roc(
    title: &str,
    attacks: &[(String, Vec<(f64, f64)>)],
    bounds: &[(String, Vec<(f64, f64)>)],
    log: Option<f64>,
) -> String {
    let axis = |label: &str| match log {
        Some(floor) => Axis::log(label).range(floor, 1.0),
        None => Axis::linear(label).range(0.0, 1.0),
    };
    // A straight diagonal in both scales, and dense enough to be clipped cleanly.
    let diagonal = vec![(0.0, 0.0), (log.unwrap_or(0.5), log.unwrap_or(0.5)), (1.0, 1.0)];
    let mut chart = Chart::new(title)
        .x(axis("false-positive rate"))
        .y(axis("true-positive rate"))
        .square()
        .series(Series::line("chance", diagonal).muted().dashed());
    for (index, (name, curve)) in attacks.iter().enumerate() {
        chart = chart.series(Series::line(name, curve.clone()).sparse_markers(5).colour(index));
    }
    for (index, (name, curve)) in bounds.iter().enumerate() {
        chart = chart.series(Series::line(name, curve.clone()).colour(attacks.len() + index).dashed());
    }
    chart.svg()
}

#[cfg(test)]
mod tests;
