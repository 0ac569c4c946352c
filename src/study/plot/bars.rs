//! Bars lie on their side: names of methods are long, screens are narrow.

use std::fmt::Write;

use super::axis::{Axis, Scale, short};
use super::page::{
    Area, COLOURS, Key, Swatch, TEXT, TICK, WIDTH, document, escape, heading, identity, legend, marker, px, text_width,
    thin,
};

/// A bar, with an interval around its end and a bound beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// Its length.
    pub value: f64,
    /// An interval around the end.
    pub interval: Option<[f64; 2]>,
    /// A bound, drawn as an upright mark.
    pub bound: Option<f64>,
}

impl From<f64> for Bar {
    fn from(value: f64) -> Self {
        Self { value, interval: None, bound: None }
    }
}

/// Groups of bars: one row a label, one bar a series in each row.
#[derive(Debug, Clone)]
pub struct BarChart {
    title: String,
    axis: Axis,
    series: Vec<String>,
    rows: Vec<(String, Vec<Option<Bar>>)>,
    points: bool,
}

impl BarChart {
    /// An empty chart; `series` names the bars of a row (one empty name for a plain chart without legend). A linear
    /// axis starts at zero.
    pub fn new(title: impl Into<String>, axis: Axis, series: &[&str]) -> Self {
        let axis = if axis.scale == Scale::Linear { axis.from_zero() } else { axis };
        let series = series.iter().map(|s| (*s).to_owned()).collect();
        Self { title: title.into(), axis, series, rows: Vec::new(), points: false }
    }

    /// Draw points with their intervals instead of bars, whose length says nothing on a logarithmic axis. Values stand in a column of their own at
    /// the right, never beside a bound.
    pub fn points(mut self) -> Self {
        self.points = true;
        self
    }

    /// Add a row; a missing bar is `None`.
    pub fn row(mut self, label: impl Into<String>, bars: Vec<Option<Bar>>) -> Self {
        self.rows.push((label.into(), bars));
        self
    }

    /// One `<svg>` element.
    pub fn svg(&self) -> String {
        let bars = || self.rows.iter().flat_map(|row| row.1.iter().flatten());
        let values = bars().flat_map(|bar| {
            let interval = bar.interval.unwrap_or([bar.value; 2]);
            [bar.value, interval[0], interval[1], bar.bound.unwrap_or(bar.value)]
        });
        let x = self.axis.settle(values);
        let mut keys: Vec<Key> = Vec::new();
        for (index, name) in self.series.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let swatch = if self.points { Swatch::Marker(index, false) } else { Swatch::Box };
            keys.push(Key { name: name.clone(), class: format!("fp-c{}", index % COLOURS), swatch });
        }
        if bars().any(|bar| bar.bound.is_some()) {
            keys.push(Key { name: "bound".into(), class: "fp-ink".into(), swatch: Swatch::Mark });
        }
        let (head, below) = heading(&self.title);
        let (legend, below) = legend(&keys, below);
        let labels = self.rows.iter().map(|(label, _)| text_width(label, TEXT)).fold(30.0, f64::max);
        // Long names stand above their bars.
        let above = if labels > 0.28 * WIDTH { 17.0 } else { 0.0 };
        let left = if above > 0.0 { 14.0 } else { labels + 22.0 };
        let each = self.series.len().max(1) as f64;
        let thick = if each > 1.0 { 13.0 } else { 17.0 };
        let (row_height, top) = (above + each * thick + 9.0, below + 8.0);
        // The written values need room to the right of the longest bar.
        let room = bars().map(|bar| text_width(&short(bar.value), TICK)).fold(0.0, f64::max) + 22.0;
        let area = Area { left, top, width: WIDTH - left - room, height: row_height * self.rows.len() as f64 };
        let (bottom, height) = (area.top + area.height, area.top + area.height + 46.0);

        let (mut grid, mut body) = (String::new(), String::new());
        let span = |t: &str, at: f64| (at - 0.5 * text_width(t, TICK) - 3.0, at + 0.5 * text_width(t, TICK) + 3.0);
        for tick in thin(x.ticks((area.width / 60.0) as usize), |value| area.x(&x, value), span) {
            let Some(text) = tick.text else { continue };
            let at = px(area.x(&x, tick.value));
            let _ = write!(grid, "M{at} {}V{}", px(area.top), px(bottom));
            let y = px(bottom + 16.0);
            let _ = writeln!(body, "<text class=\"fp-t fp-m\" x=\"{at}\" y=\"{y}\">{}</text>", escape(&text));
        }
        let base = if x.scale == Scale::Linear { area.x(&x, 0.0) } else { area.left };
        for (index, (label, bars)) in self.rows.iter().enumerate() {
            let row_top = area.top + row_height * index as f64 + 4.5 + above;
            let (class, lx, ly) = if above > 0.0 {
                ("", area.left + 5.0, row_top - 4.0)
            } else {
                (" class=\"fp-e\"", area.left - 8.0, row_top + 0.5 * each * thick + 4.0)
            };
            let (lx, ly) = (px(lx), px(ly));
            let _ = writeln!(body, "<text{class} x=\"{lx}\" y=\"{ly}\">{}</text>", escape(label));
            for (series, bar) in bars.iter().enumerate() {
                let Some(bar) = bar.filter(|bar| bar.value.is_finite()) else { continue };
                let y = row_top + thick * series as f64;
                let name = self.series.get(series).map_or("", String::as_str);
                let at = |v| area.x(&x, v).clamp(area.left, area.left + area.width);
                let drawn = if self.points {
                    let line = px(area.left + area.width + 8.0);
                    dot(&bar, &tip(&bar, label, name), series, y + 0.5 * thick, &line, at)
                } else {
                    draw(&bar, &tip(&bar, label, name), series, base, y, thick, at)
                };
                let _ = writeln!(body, "{drawn}");
            }
        }
        let axis = format!("<path class=\"fp-axis\" d=\"M{} {}V{}\"/>\n", px(base), px(area.top), px(bottom));
        let label = format!(
            "<text class=\"fp-m\" x=\"{}\" y=\"{}\">{}</text>\n",
            px(area.left + 0.5 * area.width),
            px(height - 9.0),
            escape(&self.axis.label)
        );
        let id = identity(&format!("{}{head}{body}", self.title));
        let body = format!("{head}{legend}<path class=\"fp-grid\" d=\"{grid}\"/>\n{body}{axis}{label}");
        let names: Vec<&str> = self.rows.iter().map(|row| row.0.as_str()).collect();
        let description =
            format!("{} of {} for {}.", if self.points { "Points" } else { "Bars" }, self.axis.label, names.join(", "));
        document(&id, height, &self.title, &description, &body)
    }
}

/// What a pointer on a bar tells.
fn tip(bar: &Bar, label: &str, name: &str) -> String {
    let mut tip = format!("{label}{}{name}: {}", if name.is_empty() { "" } else { ", " }, short(bar.value));
    if let Some([low, high]) = bar.interval {
        let _ = write!(tip, " ({} to {})", short(low), short(high));
    }
    if let Some(bound) = bar.bound {
        let _ = write!(tip, ", bound {}", short(bound));
    }
    tip
}

/// A point at height `y` with its interval, its bound, and its value at `column`.
fn dot(bar: &Bar, tip: &str, series: usize, y: f64, column: &str, x: impl Fn(f64) -> f64) -> String {
    let mut out = format!("<g class=\"fp-c{}\">", series % COLOURS);
    if let Some([low, high]) = bar.interval.filter(|i| i[0].is_finite() && i[1].is_finite()) {
        let (low, high, cap) = (px(x(low)), px(x(high)), px(y - 3.0));
        let _ = write!(out, "<path class=\"fp-x\" d=\"M{low} {}H{high}M{low} {cap}v6M{high} {cap}v6\"/>", px(y));
    }
    let shape = marker(series, x(bar.value), y);
    let _ = write!(out, "<path class=\"fp-p\" d=\"{shape}\"><title>{}</title></path></g>", escape(tip));
    if let Some(bound) = bar.bound.filter(|b| b.is_finite()) {
        let _ = write!(out, "<path class=\"fp-l fp-ink\" d=\"M{} {}v13\"/>", px(x(bound)), px(y - 6.5));
    }
    let text = short(bar.value);
    let _ = write!(out, "<text class=\"fp-t\" x=\"{column}\" y=\"{}\">{text}</text>", px(y + 4.0));
    out
}

fn draw(bar: &Bar, tip: &str, series: usize, base: f64, y: f64, thick: f64, x: impl Fn(f64) -> f64) -> String {
    let end = x(bar.value);
    let (from, width) = (base.min(end), (end - base).abs().max(0.5));
    let text = short(bar.value);
    let middle = px(y + 0.5 * thick);
    let mut out = format!(
        "<g class=\"fp-c{}\"><rect class=\"fp-p\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"><title>{}</title></rect></g>",
        series % COLOURS,
        px(from),
        px(y + 1.0),
        px(width),
        px(thick - 2.0),
        escape(tip)
    );
    let mut right = end.max(base);
    if let Some([low, high]) = bar.interval.filter(|i| i[0].is_finite() && i[1].is_finite()) {
        let (low, high) = (x(low), x(high));
        right = right.max(high);
        let cap = px(y + 0.5 * thick - 3.0);
        let _ = write!(
            out,
            "<path class=\"fp-x fp-ink\" d=\"M{} {middle}H{}M{} {cap}v6M{} {cap}v6\"/>",
            px(low),
            px(high),
            px(low),
            px(high)
        );
    }
    if let Some(bound) = bar.bound.filter(|b| b.is_finite()) {
        let at = x(bound);
        // The value stands beside its bar, not beside the bound, where the two could be taken for one another.
        if at > right - 6.0 && at < right + text_width(&text, TICK) + 10.0 {
            right = at;
        }
        let _ = write!(out, "<path class=\"fp-l fp-ink\" d=\"M{} {}v{}\"/>", px(at), px(y), px(thick));
    }
    let _ =
        write!(out, "<text class=\"fp-t\" x=\"{}\" y=\"{}\">{text}</text>", px(right + 5.0), px(y + 0.5 * thick + 4.0));
    out
}
