//! Which block fired when, which way, and what that did to the loss.

use std::fmt::Write;

use super::axis::Axis;
use super::page::{
    Area, Key, Swatch, TEXT, WIDTH, axes, document, escape, heading, identity, left_margin, legend, px, text_width,
};

/// One released bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiredBit {
    /// Step of the run, from 0.
    pub step: u64,
    /// Row, from 0: a block, or a group.
    pub row: u64,
    /// The bit: whether the direction was taken as drawn.
    pub plus: bool,
}

/// The raster of a run of `steps` steps: a tick for each released bit in the row of its block, coloured by its sign, the first row on top; under
/// it, on the same steps, the held-out perplexity after each of them, as far as `curve` (step, perplexity) knows it.
/// Bits outside the stated size are left out.
pub fn raster(title: &str, steps: u64, rows: &[String], fired: &[FiredBit], curve: &[(f64, f64)]) -> String {
    let (steps, count) = (steps.max(1), rows.len().max(1) as u64);
    let fired: Vec<&FiredBit> = fired.iter().filter(|f| f.step < steps && f.row < count).collect();
    let plus = fired.iter().filter(|f| f.plus).count();
    let key = |name: String, colour: usize| Key { name, class: format!("fp-c{colour}"), swatch: Swatch::Box };
    let keys = [key(format!("+1 ({plus} bits)"), 0), key(format!("\u{2212}1 ({} bits)", fired.len() - plus), 1)];
    let (head, below) = heading(title);
    let (legend, below) = legend(&keys, below);
    let x = Axis::linear("step").whole().range(0.0, steps as f64).settle(std::iter::empty());
    let loss = Axis::log("perplexity").settle(curve.iter().map(|c| c.1));
    let lower = if curve.is_empty() { 0.0 } else { 130.0 };
    let labels = rows.iter().map(|row| text_width(row, TEXT)).fold(0.0, f64::max) + 18.0;
    let left = if curve.is_empty() { labels } else { labels.max(left_margin(&loss, lower)) };
    let each = (150.0 / count as f64).clamp(9.0, 26.0);
    let area = Area { left, top: below + 10.0, width: WIDTH - left - 24.0, height: each * count as f64 };

    // One path a sign: thousands of bits stay a small file. A tick is at least as big as the eye needs.
    let cell = area.width / steps as f64;
    let (w, h) = (cell.clamp(1.6, 8.0), 0.8 * each);
    let mut paths = [String::new(), String::new()];
    for bit in &fired {
        let at_x = area.left + (bit.step as f64 + 0.5) * cell - 0.5 * w;
        let at_y = area.top + (bit.row as f64 + 0.1) * each;
        let (w, h) = (px(w), px(h));
        let _ = write!(paths[usize::from(!bit.plus)], "M{} {}h{w}v{h}h-{w}z", px(at_x), px(at_y));
    }
    let mut frame = String::new();
    for (row, name) in rows.iter().enumerate() {
        let middle = area.top + (row as f64 + 0.5) * each;
        let _ = writeln!(
            frame,
            "<path class=\"fp-grid\" d=\"M{} {}h{}\"/><text class=\"fp-t fp-e\" x=\"{}\" y=\"{}\">{}</text>",
            px(area.left),
            px(area.top + (row + 1) as f64 * each),
            px(area.width),
            px(area.left - 7.0),
            px(middle + 4.0),
            escape(name)
        );
    }
    let bottom = area.top + area.height;
    let height = bottom + 18.0 + lower + 40.0;
    let below = Area { left, top: bottom + 16.0, width: area.width, height: lower };
    if curve.is_empty() {
        let under = Area { top: bottom, height: 0.5, ..area };
        let none = Axis::linear("").range(0.0, 1.0).settle(std::iter::empty());
        frame += &axes(&under, &x, &none, "step", "", bottom + 46.0).replace(">0<", "><").replace(">1<", "><");
    } else {
        frame += &axes(&below, &x, &loss, "step", "perplexity", height);
        // The value holds until the next bit moves it.
        let mut line = String::new();
        for (i, &(step, value)) in curve.iter().enumerate() {
            let (at_x, at_y) = (px(below.x(&x, step)), px(below.y(&loss, value)));
            let _ = if i == 0 { write!(line, "M{at_x} {at_y}") } else { write!(line, "H{at_x}V{at_y}") };
        }
        let _ = write!(line, "H{}", px(below.left + below.width));
        let _ = writeln!(frame, "<g class=\"fp-c2\"><path class=\"fp-l\" d=\"{line}\"/></g>");
    }
    let height = if curve.is_empty() { bottom + 46.0 } else { height };
    let [plus_path, minus_path] = paths;
    let id = identity(&format!("{title}{plus_path}{minus_path}"));
    let body = format!(
        "{head}{legend}{frame}<g class=\"fp-c0\"><path class=\"fp-p\" d=\"{plus_path}\"/></g>\n<g class=\"fp-c1\"><path \
         class=\"fp-p\" d=\"{minus_path}\"/></g>\n"
    );
    let description = format!("{} bits released in {count} rows over {steps} steps.", fired.len());
    document(&id, height, title, &description, &body)
}
