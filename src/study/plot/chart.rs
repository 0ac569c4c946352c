//! Lines, points, bands and error bars on two axes.

use std::fmt::Write;

use super::axis::{Axis, Scale, SettledAxis, short};
use super::page::{
    Area, COLOURS, Key, Swatch, WIDTH, axes, document, heading, identity, left_margin, legend, marker, px,
};

/// Height of a chart in pixels before scaling.
const HEIGHT: f64 = 330.0;

/// One named set of points and how it is drawn.
#[derive(Debug, Clone)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    /// (x, low, high): a filled band.
    band: Vec<(f64, f64, f64)>,
    /// (x, low, high): error bars.
    errors: Vec<(f64, f64, f64)>,
    colour: Option<usize>,
    markers: bool,
    /// Markers at this many places along the line.
    sparse: usize,
    dashed: bool,
    muted: bool,
}

impl Series {
    /// A line through `points` in their order. A point that is not finite breaks it.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
            band: Vec::new(),
            errors: Vec::new(),
            colour: None,
            markers: false,
            sparse: 0,
            dashed: false,
            muted: false,
        }
    }

    /// A band between `low` and `high` at each x, behind the line.
    pub fn band(mut self, band: Vec<(f64, f64, f64)>) -> Self {
        self.band = band;
        self
    }

    /// Error bars from `low` to `high` at each x.
    pub fn errors(mut self, errors: Vec<(f64, f64, f64)>) -> Self {
        self.errors = errors;
        self
    }

    /// Mark the points of a line.
    pub fn markers(mut self) -> Self {
        self.markers = true;
        self
    }

    /// Mark a line of many points at about `count` places spread over it, to tell it apart by shape as well as by colour.
    pub fn sparse_markers(mut self, count: usize) -> Self {
        self.sparse = count;
        self
    }

    /// Draw dashed: bounds and references.
    pub fn dashed(mut self) -> Self {
        self.dashed = true;
        self
    }

    /// Draw in the muted ink, using up no colour: references.
    pub fn muted(mut self) -> Self {
        self.muted = true;
        self
    }

    /// Fix the colour, to have one method look the same in all plots of a report.
    pub fn colour(mut self, index: usize) -> Self {
        self.colour = Some(index);
        self
    }

    /// Values that the axes must hold: `(x, y)`.
    fn extent(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let spans = self.band.iter().chain(&self.errors).flat_map(|&(x, low, high)| [(x, low), (x, high)]);
        self.points.iter().copied().chain(spans)
    }
}

/// A plot with two axes. Build it up and call [`Chart::svg`].
#[derive(Debug, Clone)]
pub struct Chart {
    title: String,
    description: Option<String>,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    square: bool,
}

impl Chart {
    /// An empty chart with linear axes.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            description: None,
            x: Axis::linear(""),
            y: Axis::linear(""),
            series: Vec::new(),
            square: false,
        }
    }

    /// The horizontal axis.
    pub fn x(mut self, axis: Axis) -> Self {
        self.x = axis;
        self
    }

    /// The vertical axis.
    pub fn y(mut self, axis: Axis) -> Self {
        self.y = axis;
        self
    }

    /// Add a series; later ones are drawn on top.
    pub fn series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// What a screen reader says after the title; without it the axes and series are named.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// Make the plotting area a square, as wide as the chart permits; the height follows.
    pub fn square(mut self) -> Self {
        self.square = true;
        self
    }

    /// One `<svg>` element.
    pub fn svg(&self) -> String {
        let extent = || self.series.iter().flat_map(Series::extent);
        let x = self.x.settle(extent().map(|p| p.0));
        let y = self.y.settle(extent().map(|p| p.1));
        let looks = self.looks();
        let keys: Vec<Key> = self
            .series
            .iter()
            .zip(&looks)
            .filter(|(series, _)| !series.name.is_empty())
            .map(|(series, (class, shape))| Key {
                name: series.name.clone(),
                class: class.clone(),
                swatch: match series {
                    Series { markers: true, .. } => Swatch::Marker(*shape, true),
                    Series { sparse: 1.., .. } => Swatch::Marker(*shape, true),
                    Series { dashed: true, .. } => Swatch::Dashed,
                    Series { points, band, .. } if points.is_empty() && !band.is_empty() => Swatch::Box,
                    _ => Swatch::Line,
                },
            })
            .collect();
        let (head, below) = heading(&self.title);
        // A lone series named like the chart needs no legend.
        let shown: &[Key] = if keys.len() == 1 && keys[0].name == self.title { &[] } else { &keys };
        let (legend, below) = legend(shown, below);
        let left = left_margin(&y, HEIGHT);
        let width = WIDTH - left - 24.0;
        let top = below + 10.0;
        let height = if self.square { top + width + 46.0 } else { HEIGHT.max(top + 246.0) };
        let area = Area { left, top, width, height: height - top - 46.0 };

        let mut marks = String::new();
        for (series, (class, shape)) in self.series.iter().zip(&looks) {
            let _ = writeln!(marks, "<g class=\"{class}\">{}</g>", draw(series, *shape, &area, &x, &y));
        }
        let id = identity(&format!("{}{head}{legend}{marks}", self.title));
        let body = format!(
            "{head}{legend}{}<clipPath id=\"{id}-c\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n<g \
             clip-path=\"url(#{id}-c)\">\n{marks}</g>\n",
            axes(&area, &x, &y, &self.x.label, &self.y.label, height),
            // Half a stroke of air, so that lines on the frame are not cut in half.
            px(area.left - 1.0),
            px(area.top - 4.0),
            px(area.width + 5.0),
            px(area.height + 5.0),
        );
        document(&id, height, &self.title, &self.describe(), &body)
    }

    /// Class and marker of each series.
    fn looks(&self) -> Vec<(String, usize)> {
        let mut next = 0;
        self.series
            .iter()
            .map(|series| {
                if series.muted {
                    return ("fp-muted".to_owned(), 0);
                }
                let colour = series.colour.unwrap_or(next);
                next = colour + 1;
                (format!("fp-c{}", colour % COLOURS), colour)
            })
            .collect()
    }

    fn describe(&self) -> String {
        if let Some(text) = &self.description {
            return text.clone();
        }
        let log = |axis: &Axis| if axis.scale == Scale::Log { " (logarithmic)" } else { "" };
        let names: Vec<&str> = self.series.iter().map(|s| s.name.as_str()).filter(|n| !n.is_empty()).collect();
        format!(
            "{}{} against {}{}: {}.",
            self.y.label,
            log(&self.y),
            self.x.label,
            log(&self.x),
            if names.is_empty() { "no series".into() } else { names.join(", ") }
        )
    }
}

/// Points of a path in pixels, with breaks at values that are not finite. Points closer than half a pixel to the last
/// one drawn are left out (a curve of thousands of steps stays small), except the end of each piece.
fn path(points: impl Iterator<Item = (f64, f64)>, area: &Area, x: &SettledAxis, y: &SettledAxis) -> String {
    const CLOSE: f64 = 0.5;
    let mut out = String::new();
    let mut last: Option<(f64, f64)> = None;
    let mut held: Option<(f64, f64)> = None;
    let write_to = |out: &mut String, letter: char, at: (f64, f64)| {
        let _ = write!(out, "{letter}{} {}", px(at.0), px(at.1));
    };
    for (a, b) in points {
        if !(a.is_finite() && b.is_finite()) {
            if let Some(end) = held.take() {
                write_to(&mut out, 'L', end);
            }
            last = None;
            continue;
        }
        let here = (area.x(x, a), area.y(y, b));
        match last {
            Some(drawn) if (drawn.0 - here.0).abs().max((drawn.1 - here.1).abs()) < CLOSE => held = Some(here),
            _ => {
                // A jump leaves from the last point that was there, not from the last that was drawn.
                if let Some(from) = held.take() {
                    write_to(&mut out, 'L', from);
                }
                write_to(&mut out, if last.is_none() { 'M' } else { 'L' }, here);
                last = Some(here);
            }
        }
    }
    if let Some(end) = held {
        write_to(&mut out, 'L', end);
    }
    out
}

/// Where sparse markers go: at equal distances along the visible line, each series with an offset of its own.
fn spread(series: &Series, shape: usize, area: &Area, x: &SettledAxis, y: &SettledAxis) -> Vec<(f64, f64)> {
    let inside = |v: f64, from: f64, size: f64| v >= from - 1.0 && v <= from + size + 1.0;
    let points: Vec<(f64, f64)> = series
        .points
        .iter()
        .filter(|p| p.0.is_finite() && p.1.is_finite())
        .map(|p| (area.x(x, p.0), area.y(y, p.1)))
        .filter(|p| inside(p.0, area.left, area.width) && inside(p.1, area.top, area.height))
        .collect();
    let lengths = points.windows(2).map(|w| (w[1].0 - w[0].0).hypot(w[1].1 - w[0].1));
    let total: f64 = lengths.clone().sum();
    let step = total / series.sparse.max(1) as f64;
    if series.sparse == 0 || step <= 0.0 {
        return Vec::new();
    }
    let mut next = step * (0.2 + 0.6 * (shape % COLOURS) as f64 / COLOURS as f64);
    let (mut walked, mut out) = (0.0, Vec::new());
    for (ends, length) in points.windows(2).zip(lengths) {
        while next <= walked + length && length > 0.0 {
            let share = (next - walked) / length;
            out.push((ends[0].0 + share * (ends[1].0 - ends[0].0), ends[0].1 + share * (ends[1].1 - ends[0].1)));
            next += step;
        }
        walked += length;
    }
    out
}

fn draw(series: &Series, shape: usize, area: &Area, x: &SettledAxis, y: &SettledAxis) -> String {
    let mut out = String::new();
    let whole = |(a, low, high): &&(f64, f64, f64)| a.is_finite() && low.is_finite() && high.is_finite();
    let band: Vec<_> = series.band.iter().filter(whole).collect();
    if !band.is_empty() {
        let upper = band.iter().map(|p| (p.0, p.2));
        let lower = band.iter().rev().map(|p| (p.0, p.1));
        let _ = write!(out, "<path class=\"fp-b\" d=\"{}z\"/>", path(upper.chain(lower), area, x, y));
    }
    let mut bars = String::new();
    for &(at, low, high) in series.errors.iter().filter(whole) {
        let (at, low, high) = (area.x(x, at), area.y(y, low), area.y(y, high));
        let cap = px(at - 3.5);
        let _ = write!(bars, "M{} {}V{}M{cap} {}h7M{cap} {}h7", px(at), px(low), px(high), px(low), px(high));
    }
    if !bars.is_empty() {
        let _ = write!(out, "<path class=\"fp-x\" d=\"{bars}\"/>");
    }
    if !series.points.is_empty() {
        let class = if series.dashed { "fp-l fp-d" } else { "fp-l" };
        let _ = write!(out, "<path class=\"{class}\" d=\"{}\"/>", path(series.points.iter().copied(), area, x, y));
    }
    for at in spread(series, shape, area, x, y) {
        let _ = write!(out, "<path class=\"fp-p\" d=\"{}\"/>", marker(shape, at.0, at.1));
    }
    if series.markers {
        // Tooltips only while they stay few.
        let tooltips = series.points.len() <= 200;
        for &(a, b) in series.points.iter().filter(|p| p.0.is_finite() && p.1.is_finite()) {
            let outline = marker(shape, area.x(x, a), area.y(y, b));
            if tooltips {
                let text = super::page::escape(&format!("{}: {}, {}", series.name, short(a), short(b)));
                let _ = write!(out, "<path class=\"fp-p\" d=\"{outline}\"><title>{text}</title></path>");
            } else {
                let _ = write!(out, "<path class=\"fp-p\" d=\"{outline}\"/>");
            }
        }
    }
    out
}
