//! Scales, ticks and how numbers are written beside them.

use crate::study::table::thousands;

/// How values map to positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps, equal distances.
    Linear,
    /// Equal ratios, equal distances. Values that are not positive lie far below the low end.
    Log,
}

/// One axis: label with unit, scale and, if the data is not to decide, the range.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    pub(super) label: String,
    pub(super) scale: Scale,
    range: Option<(f64, f64)>,
    zero: bool,
    whole: bool,
}

/// A tick: where, and what is written there (minor ticks carry no text).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub value: f64,
    pub text: Option<String>,
}

/// An axis whose range is settled.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SettledAxis {
    pub scale: Scale,
    pub low: f64,
    pub high: f64,
    pub whole: bool,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, range: None, zero: false, whole: false }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Self {
        Self { scale: Scale::Log, ..Self::linear(label) }
    }

    /// Fix the range. Ignored unless `low < high`, both below 1e200 in size and, on a log axis, at least 1e-200.
    pub fn range(mut self, low: f64, high: f64) -> Self {
        let least = if self.scale == Scale::Linear { -1e200 } else { 1e-200 };
        self.range = (low >= least && high <= 1e200 && low < high).then_some((low, high));
        self
    }

    /// Let the range include zero (linear axes).
    pub fn from_zero(mut self) -> Self {
        self.zero = true;
        self
    }

    /// Put ticks at whole numbers only (linear axes): counts.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// The range of these values: a little air on both sides, never empty.
    pub(super) fn settle(&self, values: impl Iterator<Item = f64>) -> SettledAxis {
        let (scale, whole) = (self.scale, self.whole);
        if let Some((low, high)) = self.range {
            return SettledAxis { scale, low, high, whole };
        }
        // Beyond 1e200 differences and ratios overflow; such points are drawn at the edge.
        let bound = |v: f64| if scale == Scale::Log { v.clamp(1e-200, 1e200) } else { v.clamp(-1e200, 1e200) };
        let usable = values.filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0)).map(bound);
        let (mut low, mut high) = usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = if scale == Scale::Log { (0.1, 1.0) } else { (0.0, 1.0) };
        }
        match scale {
            Scale::Linear => {
                if self.zero {
                    (low, high) = (low.min(0.0), high.max(0.0));
                }
                if low == high {
                    let air = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
                    (low, high) = (low - air, high + air);
                }
                let air = 0.05 * (high - low);
                // Data that starts at zero keeps its axis there.
                let bottom = if low == 0.0 { 0.0 } else { low - air };
                SettledAxis { scale, low: bottom, high: if high == 0.0 { 0.0 } else { high + air }, whole }
            }
            Scale::Log => {
                let air = ((high / low).ln() * 0.05).max(0.05).exp();
                SettledAxis { scale, low: low / air, high: high * air, whole }
            }
        }
    }
}

impl SettledAxis {
    /// 0 at the low end, 1 at the high end; far outside values are pulled in to keep coordinates printable.
    pub fn position(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            // Far outside, not at the edge: a curve that comes from zero enters the picture, and does not run along its frame.
            Scale::Log => -10.0,
        };
        place.clamp(-10.0, 11.0)
    }

    /// Ticks inside the range, about `want` of them labelled.
    pub fn ticks(&self, want: usize) -> Vec<Tick> {
        match self.scale {
            Scale::Linear => self.linear_ticks(want),
            Scale::Log => {
                let ticks = self.log_ticks(want);
                // Between 101 and 199 there is no round number of one digit.
                if ticks.iter().filter(|t| t.text.is_some()).count() < 3 {
                    self.linear_ticks(want.max(4))
                } else {
                    ticks
                }
            }
        }
    }

    fn linear_ticks(&self, want: usize) -> Vec<Tick> {
        let raw = (self.high - self.low) / want.max(2) as f64;
        let decade = 10f64.powf(raw.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * decade).find(|s| *s >= raw * 0.999).unwrap_or(10.0 * decade);
        let step = if self.whole { step.max(1.0) } else { step };
        let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last)
            .map(|i| {
                let value = i as f64 * step;
                Tick { value, text: Some(plain(value, decimals)) }
            })
            .collect()
    }

    fn log_ticks(&self, want: usize) -> Vec<Tick> {
        let (from, to) = (self.low.log10(), self.high.log10());
        let decades = to - from;
        // Which digits of a decade are labelled: all of 1, 2, 5 when the range is short, else 1, else every n-th.
        let labelled: &[u32] = match decades {
            d if d < 0.7 => &[1, 2, 3, 4, 5, 6, 7, 8, 9],
            d if d < 2.8 => &[1, 2, 5],
            _ => &[1],
        };
        let every = (decades / want.max(2) as f64).ceil().max(1.0) as i32;
        let mut out = Vec::new();
        for exponent in from.floor() as i32..=to.ceil() as i32 {
            for digit in 1..=9u32 {
                let value = f64::from(digit) * 10f64.powi(exponent);
                if value < self.low * (1.0 - 1e-9) || value > self.high * (1.0 + 1e-9) {
                    continue;
                }
                let text = labelled.contains(&digit) && exponent.rem_euclid(every) == 0;
                if text || every == 1 {
                    out.push(Tick { value, text: text.then(|| power(digit, exponent)) });
                }
            }
        }
        out
    }
}

/// `12,000`, `0.25`, `3M`: fixed decimals, thousands set apart.
fn plain(value: f64, decimals: usize) -> String {
    let value = if value == 0.0 { 0.0 } else { value };
    if value.abs() >= 1e12 || (value != 0.0 && decimals > 6) {
        return format!("{value:e}");
    }
    if value.abs() >= 1e6 && (value / 1e5).fract().abs() < 1e-9 {
        return format!("{}M", value / 1e6);
    }
    group_thousands(&format!("{value:.decimals$}"))
}

fn group_thousands(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("\u{2212}", rest));
    let (whole, fraction) = rest.split_once('.').map_or((rest, None), |(w, f)| (w, Some(f)));
    let mut out = format!("{sign}{}", whole.parse().map_or_else(|_| whole.to_owned(), thousands));
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// A tick of a log axis: plain from 0.001 to 100,000, else a power of ten.
fn power(digit: u32, exponent: i32) -> String {
    if (-3..=5).contains(&exponent) {
        return plain(f64::from(digit) * 10f64.powi(exponent), (-exponent).max(0) as usize);
    }
    let raised: String = exponent
        .to_string()
        .chars()
        .map(|c| match c {
            '-' => '\u{207b}',
            '1' => '\u{b9}',
            '2' => '\u{b2}',
            '3' => '\u{b3}',
            other => char::from_u32(0x2070 + other.to_digit(10).unwrap_or(0)).unwrap_or(other),
        })
        .collect();
    if digit == 1 { format!("10{raised}") } else { format!("{digit}\u{b7}10{raised}") }
}

/// A value in a tooltip or at a bar's end: four significant digits, no trailing zeros.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-4..7).contains(&magnitude) {
        return format!("{value:.2e}");
    }
    let text = format!("{value:.*}", (3 - magnitude).clamp(0, 8) as usize);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    group_thousands(text)
}
