//! The frame all plots share: the element, its style, title, legend and axes.

use std::fmt::Write;

use super::axis::{SettledAxis, Tick};

/// Colours by index, light and dark: any two differ in lightness or in what every common kind of colour blindness leaves of the hue.
pub(super) const PALETTE: [(&str, &str); 8] = [
    ("#0b62b0", "#62b0ff"),
    ("#c25400", "#ffa35c"),
    ("#034939", "#b4fea3"),
    ("#492e64", "#d5cffe"),
    ("#b38254", "#a97e51"),
    ("#722503", "#ec38b5"),
    ("#1b96c5", "#75feda"),
    ("#828c88", "#7f8980"),
];
const INKS: [(&str, &str, &str); 4] = [
    ("ink", "#1d2026", "#e6e8ec"),
    ("muted", "#666c77", "#9aa1ad"),
    ("grid", "#e4e6ea", "#33373f"),
    ("paper", "#ffffff", "#16181d"),
];

/// Width of every plot in pixels before scaling.
pub(super) const WIDTH: f64 = 440.0;

/// Sizes of text in pixels: labels and legends, ticks and values, titles. The style says the same.
pub(super) const TEXT: f64 = 12.5;
pub(super) const TICK: f64 = 12.0;
const HEADING: f64 = 14.5;

/// How many colours there are before they repeat.
pub(super) const COLOURS: usize = PALETTE.len();

/// The plotting area in pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    pub fn x(&self, axis: &SettledAxis, value: f64) -> f64 {
        self.left + self.width * axis.position(value)
    }

    pub fn y(&self, axis: &SettledAxis, value: f64) -> f64 {
        self.top + self.height * (1.0 - axis.position(value))
    }
}

/// What stands in the legend: text, class and kind of swatch.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub name: String,
    pub class: String,
    pub swatch: Swatch,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Swatch {
    Line,
    Dashed,
    /// A marker of this shape, with or without a line through it.
    Marker(usize, bool),
    Box,
    /// The thin upright mark of a bound.
    Mark,
}

/// Text as XML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0 has no way to write most control characters.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// About how wide `text` is at `size` pixels: system fonts differ, so this errs on the wide side.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    let units: f64 = text
        .chars()
        .map(|c| match c {
            'i' | 'l' | 'j' | '.' | ',' | ':' | '|' | '\'' | '(' | ')' | '[' | ']' | 'f' | 't' | 'r' | ' ' => 0.36,
            'm' | 'w' | 'M' | 'W' | '%' => 0.9,
            c if c.is_ascii_uppercase() => 0.7,
            _ => 0.58,
        })
        .sum();
    units * size
}

/// A coordinate with one decimal, no `-0`, no trailing `.0`.
pub(super) fn px(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    if rounded == 0.0 { "0".into() } else { format!("{rounded}") }
}

fn style() -> String {
    let variables = |dark: bool| {
        let pick = |light: &str, night: &str| if dark { night.to_owned() } else { light.to_owned() };
        let mut out = String::new();
        for (name, light, night) in INKS {
            let _ = write!(out, "--fp-{name}:{};", pick(light, night));
        }
        for (index, (light, night)) in PALETTE.iter().enumerate() {
            let _ = write!(out, "--fp-{index}:{};", pick(light, night));
        }
        out
    };
    // Each colour is written twice: renderers without variables keep the plain one.
    let mut out = format!(
        "svg.fp{{{}color:#1d2026;color:var(--fp-ink);font:12.5px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',\
         sans-serif;max-width:100%;height:auto}}@media(prefers-color-scheme:dark){{svg.fp{{{}}}}}\
         .fp text{{fill:currentColor}}.fp .fp-h{{font-size:14.5px;font-weight:600}}.fp .fp-t{{font-size:12px}}\
         .fp .fp-e{{text-anchor:end}}.fp .fp-m{{text-anchor:middle}}\
         .fp .fp-paper{{fill:#fff;fill:var(--fp-paper)}}.fp .fp-grid{{stroke:#e4e6ea;stroke:var(--fp-grid);fill:none}}\
         .fp .fp-axis{{stroke:#666c77;stroke:var(--fp-muted);fill:none}}\
         .fp .fp-l{{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}}\
         .fp .fp-d{{stroke-dasharray:6 4;stroke-width:1.6;stroke-linecap:butt}}\
         .fp .fp-b{{fill:currentColor;opacity:.18;stroke:none}}.fp .fp-p{{fill:currentColor;stroke:none}}\
         .fp .fp-x{{fill:none;stroke:currentColor;stroke-width:1.4}}\
         .fp .fp-ink{{color:#1d2026;color:var(--fp-ink)}}.fp .fp-muted{{color:#666c77;color:var(--fp-muted)}}",
        variables(false),
        variables(true),
    );
    for (index, (light, _)) in PALETTE.iter().enumerate() {
        let _ = write!(out, ".fp .fp-c{index}{{color:{light};color:var(--fp-{index})}}");
    }
    out
}

/// Wrap a drawing. `id` must be the one used inside, for its clip path.
pub(super) fn document(id: &str, height: f64, title: &str, description: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fp\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\" \
         viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\">\n<title id=\"{id}-t\">{}</title>\n<desc \
         id=\"{id}-d\">{}</desc>\n<style>{}</style>\n<rect class=\"fp-paper\" width=\"{w}\" height=\"{h}\" rx=\"6\"/>\n\
         {body}</svg>\n",
        escape(title),
        escape(description),
        style(),
        w = px(WIDTH),
        h = px(height),
    )
}

/// An id that differs between plots of one page: a hash (FNV-1a) of what is drawn.
pub(super) fn identity(content: &str) -> String {
    let hash = content.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("fp{hash:016x}")
}

/// The title, broken into lines that fit; its letters are bold and so wider than others. Returns the drawing and the y below it.
pub(super) fn heading(title: &str) -> (String, f64) {
    let mut lines: Vec<String> = vec![String::new()];
    for word in title.split_whitespace() {
        let line = lines.last_mut().expect("starts with one line");
        if !line.is_empty() && 1.15 * text_width(&format!("{line} {word}"), HEADING) > WIDTH - 24.0 {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    let mut out = String::new();
    let mut y = 24.0;
    for line in lines.iter().filter(|line| !line.is_empty()) {
        let _ = writeln!(out, "<text class=\"fp-h\" x=\"12\" y=\"{}\">{}</text>", px(y), escape(line));
        y += 18.0;
    }
    (out, y - 8.0)
}

/// The legend, wrapped to the width, from `top` down. Returns the drawing and the y below it.
pub(super) fn legend(keys: &[Key], top: f64) -> (String, f64) {
    if keys.is_empty() {
        return (String::new(), top);
    }
    let (mut x, mut y) = (12.0, top + 14.0);
    let mut out = String::new();
    for key in keys {
        let needs = 28.0 + text_width(&key.name, TEXT) + 14.0;
        if x > 12.0 && x + needs > WIDTH - 4.0 {
            x = 12.0;
            y += 18.0;
        }
        let middle = y - 4.0;
        let _ = write!(out, "<g class=\"{}\">", key.class);
        let line = |class: &str| format!("<path class=\"{class}\" d=\"M{} {}h22\"/>", px(x), px(middle));
        out.push_str(&match key.swatch {
            Swatch::Line => line("fp-l"),
            Swatch::Dashed => line("fp-l fp-d"),
            Swatch::Marker(shape, through) => {
                let dot = format!("<path class=\"fp-p\" d=\"{}\"/>", marker(shape, x + 11.0, middle));
                if through { line("fp-l") + &dot } else { dot }
            }
            Swatch::Box => {
                format!(
                    "<rect class=\"fp-p\" x=\"{}\" y=\"{}\" width=\"14\" height=\"10\" rx=\"2\"/>",
                    px(x + 4.0),
                    px(middle - 5.0)
                )
            }
            Swatch::Mark => format!("<path class=\"fp-l\" d=\"M{} {}v12\"/>", px(x + 11.0), px(middle - 6.0)),
        });
        let _ = writeln!(out, "</g><text x=\"{}\" y=\"{}\">{}</text>", px(x + 28.0), px(y), escape(&key.name));
        x += needs;
    }
    (out, y + 6.0)
}

/// A marker's outline around a point, a shape of its own for every colour: circle, square, triangle, diamond, ring, triangle on its head, plus, cross.
pub(super) fn marker(shape: usize, x: f64, y: f64) -> String {
    let (x0, y0) = (px(x - 3.5), px(y));
    match shape % COLOURS {
        0 => format!("M{x0} {y0}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"),
        1 => format!("M{} {}h6.4v6.4h-6.4z", px(x - 3.2), px(y - 3.2)),
        2 => format!("M{} {}l4.2 7.2h-8.4z", px(x), px(y - 4.6)),
        3 => format!("M{} {}l4.4 4.4l-4.4 4.4l-4.4 -4.4z", px(x), px(y - 4.4)),
        // The hole runs the other way round.
        4 => format!(
            "M{} {y0}a4.2 4.2 0 1 0 8.4 0a4.2 4.2 0 1 0 -8.4 0zm2 0a2.2 2.2 0 1 1 4.4 0a2.2 2.2 0 1 1 -4.4 0z",
            px(x - 4.2)
        ),
        5 => format!("M{} {}l4.2 -7.2h-8.4z", px(x), px(y + 4.6)),
        6 => format!("M{} {}h3v3h3v3h-3v3h-3v-3h-3v-3h3z", px(x - 1.5), px(y - 4.5)),
        _ => format!(
            "M{} {}l2.5 2.5l2.5 -2.5l1.9 1.9l-2.5 2.5l2.5 2.5l-1.9 1.9l-2.5 -2.5l-2.5 2.5l-1.9 -1.9l2.5 -2.5l-2.5 -2.5z",
            px(x - 2.5),
            px(y - 4.4)
        ),
    }
}

/// Ticks of which those lose their text that would run into another's; powers of ten keep theirs first.
pub(super) fn thin(ticks: Vec<Tick>, at: impl Fn(f64) -> f64, span: impl Fn(&str, f64) -> (f64, f64)) -> Vec<Tick> {
    let mut order: Vec<usize> = (0..ticks.len()).collect();
    order
        .sort_by_key(|&i| !ticks[i].text.as_deref().is_some_and(|t| t.trim_start_matches(['0', '.']).starts_with('1')));
    let mut taken: Vec<(f64, f64)> = Vec::new();
    let mut keep = vec![false; ticks.len()];
    for i in order {
        let Some(text) = &ticks[i].text else { continue };
        let (from, to) = span(text, at(ticks[i].value));
        if taken.iter().all(|&(a, b)| to <= a || b <= from) {
            taken.push((from, to));
            keep[i] = true;
        }
    }
    ticks.into_iter().zip(keep).map(|(t, keep)| Tick { text: t.text.filter(|_| keep), ..t }).collect()
}

/// Grid lines, tick texts and labels of both axes.
pub(super) fn axes(area: &Area, x: &SettledAxis, y: &SettledAxis, x_label: &str, y_label: &str, height: f64) -> String {
    let (right, bottom) = (area.left + area.width, area.top + area.height);
    let (mut grid, mut small, mut texts) = (String::new(), String::new(), String::new());
    let across = x.ticks((area.width / 60.0) as usize);
    let span = |t: &str, at: f64| (at - 0.5 * text_width(t, TICK) - 3.0, at + 0.5 * text_width(t, TICK) + 3.0);
    for tick in thin(across, |value| area.x(x, value), span) {
        let at = px(area.x(x, tick.value));
        if let Some(text) = tick.text {
            let _ = write!(grid, "M{at} {}V{}", px(area.top), px(bottom));
            let _ = writeln!(
                texts,
                "<text class=\"fp-t fp-m\" x=\"{at}\" y=\"{}\">{}</text>",
                px(bottom + 16.0),
                escape(&text)
            );
        } else {
            let _ = write!(small, "M{at} {}v4", px(bottom));
        }
    }
    let up = y.ticks((area.height / 45.0) as usize);
    for tick in thin(up, |value| area.y(y, value), |_, at| (at - 0.6 * TICK, at + 0.6 * TICK)) {
        let at = area.y(y, tick.value);
        if let Some(text) = tick.text {
            let _ = write!(grid, "M{} {}H{}", px(area.left), px(at), px(right));
            let (x, y) = (px(area.left - 7.0), px(at + 4.0));
            let _ = writeln!(texts, "<text class=\"fp-t fp-e\" x=\"{x}\" y=\"{y}\">{}</text>", escape(&text));
        } else {
            let _ = write!(small, "M{} {}h-4", px(area.left), px(at));
        }
    }
    let _ = writeln!(
        texts,
        "<text class=\"fp-m\" x=\"{}\" y=\"{}\">{}</text>",
        px(area.left + 0.5 * area.width),
        px(height - 9.0),
        escape(x_label)
    );
    let middle = px(area.top + 0.5 * area.height);
    let _ = writeln!(
        texts,
        "<text class=\"fp-m\" x=\"16\" y=\"{middle}\" transform=\"rotate(-90 16 {middle})\">{}</text>",
        escape(y_label)
    );
    format!(
        "<path class=\"fp-grid\" d=\"{grid}\"/>\n<path class=\"fp-axis\" d=\"M{} {}V{}H{}{small}\"/>\n{texts}",
        px(area.left),
        px(area.top),
        px(bottom),
        px(right)
    )
}

/// Pixels that the y axis needs to its left.
pub(super) fn left_margin(y: &SettledAxis, height: f64) -> f64 {
    let widest = y.ticks((height / 45.0) as usize).into_iter().filter_map(|t| t.text).map(|t| text_width(&t, TICK));
    32.0 + widest.fold(14.0, f64::max)
}
