//! Which group fired when, and which way.

use std::fmt::Write;

use super::axis::Axis;
use super::page::{Area, Key, Swatch, axes, document, heading, identity, left_margin, legend, px};

/// One released bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fired {
    /// Step of the run, from 0.
    pub step: u64,
    /// Group, from 0.
    pub group: u64,
    /// The bit: whether the direction was taken as drawn.
    pub plus: bool,
}

/// The raster of a run of `steps` steps with `groups` groups: a tick for each released bit, coloured by its sign.
/// Bits outside the stated size are left out.
pub fn raster(title: &str, steps: u64, groups: u64, fired: &[Fired]) -> String {
    let (width, height) = (440.0, 330.0);
    let (steps, groups) = (steps.max(1), groups.max(1));
    let fired: Vec<&Fired> = fired.iter().filter(|f| f.step < steps && f.group < groups).collect();
    let x = Axis::linear("step").whole().range(0.0, steps as f64).settle(std::iter::empty());
    // Group 0 on top, as the parameters are listed.
    let y = Axis::linear("group").whole().range(0.0, groups as f64).reversed().settle(std::iter::empty());
    let plus = fired.iter().filter(|f| f.plus).count();
    let key = |name: String, colour: usize| Key { name, class: format!("fp-c{colour}"), swatch: Swatch::Box };
    let keys = [key(format!("+1 ({plus} bits)"), 0), key(format!("\u{2212}1 ({} bits)", fired.len() - plus), 1)];
    let (head, below) = heading(title, width);
    let (legend, below) = legend(&keys, below, width);
    let left = left_margin(&y, height);
    let top = below + 10.0;
    let area = Area { left, top, width: width - left - 24.0, height: height - top - 46.0 };

    // One path a sign: thousands of bits stay a small file. A tick is at least as big as the eye needs.
    let cell = (area.width / steps as f64, area.height / groups as f64);
    let size = (cell.0.clamp(1.6, 8.0), cell.1.clamp(3.0, 26.0) * if cell.1 > 4.0 { 0.8 } else { 1.0 });
    let mut paths = [String::new(), String::new()];
    for bit in &fired {
        let at_x = area.left + (bit.step as f64 + 0.5) * cell.0 - 0.5 * size.0;
        let at_y = area.top + (bit.group as f64 + 0.5) * cell.1 - 0.5 * size.1;
        let (w, h) = (px(size.0), px(size.1));
        let _ = write!(paths[usize::from(!bit.plus)], "M{} {}h{w}v{h}h-{w}z", px(at_x), px(at_y));
    }
    let frame = axes(&area, &x, &y, "step", "group", height);
    let [plus_path, minus_path] = paths;
    let id = identity(&format!("{title}{plus_path}{minus_path}"));
    let body = format!(
        "{head}{legend}{frame}<g class=\"fp-c0\"><path class=\"fp-p\" d=\"{plus_path}\"/></g>\n<g class=\"fp-c1\"><path \
         class=\"fp-p\" d=\"{minus_path}\"/></g>\n"
    );
    let description = format!("{} bits released by {groups} groups over {steps} steps.", fired.len());
    document(&id, width, height, title, &description, &body)
}
