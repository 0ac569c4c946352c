use super::axis::{SettledAxis, short};
use super::*;

/// A reader strict enough for what we write: tags balance, attributes are quoted, entities are known. Returns the tags.
fn tags(svg: &str) -> Vec<String> {
    let (mut open, mut seen, mut rest) = (Vec::new(), Vec::new(), svg.trim());
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        assert!(!text.contains('>'), "stray > in {text:?}");
        for entity in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|e| entity.starts_with(e)), "&{entity}");
        }
        let end = start + rest[start..].find('>').expect("tag closes");
        let tag = &rest[start + 1..end];
        assert!(tag.matches('"').count() % 2 == 0, "quotes in {tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()));
        } else {
            seen.push(name.clone());
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest:?}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "coordinates are finite");
    seen
}

fn labels(axis: &SettledAxis, want: usize) -> Vec<String> {
    axis.ticks(want).into_iter().filter_map(|t| t.text).collect()
}

fn settled(axis: Axis) -> SettledAxis {
    axis.settle(std::iter::empty())
}

#[test]
fn ticks_are_round_numbers() {
    assert_eq!(labels(&settled(Axis::linear("").range(0.0, 1.0)), 5), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    assert_eq!(labels(&settled(Axis::linear("").range(-3.0, 12.0)), 4), ["0", "5", "10"]);
    assert_eq!(labels(&settled(Axis::linear("").range(0.0, 30_000.0)), 3), ["0", "10,000", "20,000", "30,000"]);
    assert_eq!(
        labels(&settled(Axis::log("").range(100.0, 1e4)), 3),
        ["100", "200", "500", "1,000", "2,000", "5,000", "10,000"]
    );
    assert_eq!(labels(&settled(Axis::linear("").range(-0.3, 0.3)), 3), ["\u{2212}0.2", "0.0", "0.2"]);
    assert_eq!(labels(&settled(Axis::linear("").whole().range(0.0, 3.0)), 6), ["0", "1", "2", "3"]);
    assert_eq!(labels(&settled(Axis::log("").range(101.5, 108.5)), 3), ["102", "104", "106", "108"]);
    assert_eq!(labels(&settled(Axis::log("").range(130.0, 310.0)), 2), ["150", "200", "250", "300"]);
    assert_eq!(labels(&settled(Axis::log("").range(1e-3, 1.0)), 5), ["0.001", "0.01", "0.1", "1"]);
    assert_eq!(labels(&settled(Axis::log("").range(8.0, 120.0)), 5), ["10", "20", "50", "100"]);
    assert_eq!(
        labels(&settled(Axis::log("").range(1e-8, 1e-4)), 3),
        ["10\u{207b}\u{2078}", "10\u{207b}\u{2076}", "10\u{207b}\u{2074}"]
    );
    assert_eq!([short(0.123456), short(12_345.6), short(0.0), short(2.0)], ["0.1235", "12,346", "0", "2"]);
}

#[test]
fn positions_follow_the_scale() {
    let log = settled(Axis::log("").range(1e-2, 1.0));
    assert!((log.position(0.1) - 0.5).abs() < 1e-12);
    assert!(log.position(0.0) < 0.0, "zero lies outside");
    // Ranges that make no sense are ignored, empty and constant data get an axis all the same.
    let ignored = settled(Axis::log("").range(-1.0, 1.0));
    assert!(ignored.low > 0.05 && ignored.high < 2.0, "{ignored:?}");
    let constant = Axis::linear("").settle([3.0, 3.0, f64::NAN].into_iter());
    assert!(constant.low < 3.0 && constant.high > 3.0);
}

#[test]
fn charts_are_well_formed_whatever_the_data() {
    let odd = vec![(0.0, f64::NAN), (f64::INFINITY, 1.0), (-1.0, -5.0), (2.0, 1e300), (3.0, 0.0)];
    for axis in [Axis::linear("a < b & \"c\""), Axis::log("log")] {
        let svg = Chart::new("Title with <tags> & more")
            .x(axis.clone())
            .y(axis)
            .series(Series::line("line", odd.clone()).markers().band(vec![(0.0, f64::NAN, 1.0), (1.0, 0.5, 2.0)]))
            .series(
                Series::line("points", odd.clone()).markers().errors(vec![(1.0, 0.1, f64::INFINITY), (2.0, 0.1, 3.0)]),
            )
            .series(Series::line("", vec![]))
            .svg();
        let tags = tags(&svg);
        assert_eq!(tags.iter().filter(|t| *t == "svg").count(), 1);
        assert!(svg.contains("&lt;tags&gt; &amp; more"));
    }
    tags(&Chart::new("").svg());
    tags(&raster("empty", 0, &[], &[], &[]));
    tags(&BarChart::new("none", Axis::linear("v"), &[""]).svg());
}

#[test]
fn a_line_runs_through_its_points() {
    let svg = Chart::new("t")
        .x(Axis::linear("x").range(0.0, 10.0))
        .y(Axis::linear("y").range(0.0, 1.0))
        .series(Series::line("s", vec![(0.0, 0.0), (5.0, 0.5), (f64::NAN, 0.0), (7.5, 1.0), (10.0, 1.0)]))
        .svg();
    let drawn = svg.split("class=\"fp-l\" d=\"").nth(2).unwrap().split('"').next().unwrap();
    // Two pieces, the gap between them kept.
    assert_eq!(drawn.matches('M').count(), 2);
    let numbers: Vec<f64> = drawn.split(['M', 'L', ' ']).filter_map(|n| n.parse().ok()).collect();
    let [x0, y0, x1, y1, x2, y2, x3, y3] = numbers[..] else { panic!("{drawn}") };
    assert!((x1 - 0.5 * (x0 + x3)).abs() < 0.11 && (x2 - x0 - 0.75 * (x3 - x0)).abs() < 0.11);
    assert!((y1 - 0.5 * (y0 + y2)).abs() < 0.11 && y2 == y3 && y0 > y2, "y grows upwards");
}

#[test]
fn roc_draws_chance_attacks_and_bounds() {
    let attacks = [("loss".to_owned(), vec![(0.0, 0.0), (0.0, 0.3), (0.4, 0.8), (1.0, 1.0)])];
    let bounds = [("bound".to_owned(), vec![(0.0, 0.1), (0.9, 1.0), (1.0, 1.0)])];
    for log in [None, Some(1e-3)] {
        let svg = roc("ROC", &attacks, &bounds, log);
        tags(&svg);
        for name in ["chance", "loss", "bound"] {
            assert!(svg.contains(&format!(">{name}</text>")), "{name}");
        }
        // Legend and curve of chance and bound are dashed.
        assert_eq!(svg.matches("class=\"fp-l fp-d\"").count(), 4);
    }
}

#[test]
fn raster_draws_each_bit_once() {
    let nine: Vec<String> = (0..9).map(|i| format!("block {i}")).collect();
    let bits: Vec<FiredBit> = (0..50).map(|i| FiredBit { step: i * 7 % 100, row: i % 9, plus: i % 5 < 3 }).collect();
    let svg = raster("fired", 100, &nine, &bits, &[(0.0, 9.0), (50.0, 3.0)]);
    tags(&svg);
    assert!(svg.contains("+1 (30 bits)") && svg.contains("(20 bits)"));
    assert_eq!(svg.matches("z").count() - svg.matches("font-size").count(), 50);
    // Bits that lie outside are not drawn.
    let outside = raster("fired", 100, &nine, &[FiredBit { step: 100, row: 0, plus: true }], &[]);
    assert!(outside.contains("+1 (0 bits)"));
}

#[test]
fn bars_carry_intervals_and_bounds() {
    let bar = Bar { value: 0.2, interval: Some([0.1, 0.3]), bound: Some(0.25) };
    let svg = BarChart::new("Advantage", Axis::linear("advantage"), &["measured"])
        .row("FERRET", vec![Some(bar)])
        .row("missing", vec![None])
        .row("DPSGD", vec![Some(0.1.into())])
        .svg();
    let tags = tags(&svg);
    assert!(svg.contains("FERRET, measured: 0.2 (0.1 to 0.3), bound 0.25"));
    // Paper, legend and two bars.
    assert_eq!(tags.iter().filter(|t| *t == "rect").count(), 4);
}

#[test]
fn plots_of_one_page_have_their_own_ids() {
    let one = Chart::new("same").series(Series::line("a", vec![(0.0, 0.0), (1.0, 1.0)])).svg();
    let two = Chart::new("same").series(Series::line("a", vec![(0.0, 1.0), (1.0, 0.0)])).svg();
    let id = |svg: &str| svg.split("<title id=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    assert_ne!(id(&one), id(&two));
    assert!(one.contains("prefers-color-scheme:dark"));
}

/// Colours as people see them who lack a kind of cone (Machado, Oliveira and Fernandes 2009, at full strength), compared in CIELAB: a distance of 2.3 is
/// just noticeable side by side.
#[test]
fn colours_differ_for_the_colour_blind() {
    let kinds = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ];
    let linear = |hex: &str, at: usize| {
        let c = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    };
    let dot = |row: [f64; 3], c: [f64; 3]| row[0] * c[0] + row[1] * c[1] + row[2] * c[2];
    let lab = |c: [f64; 3]| {
        let c = c.map(|v| v.clamp(0.0, 1.0));
        let f = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let [x, y, z] = [
            f(dot([0.4124, 0.3576, 0.1805], c) / 0.9505),
            f(dot([0.2126, 0.7152, 0.0722], c)),
            f(dot([0.0193, 0.1192, 0.9505], c) / 1.089),
        ];
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    };
    for dark in [false, true] {
        let colours =
            super::page::PALETTE.map(|(day, night)| [1, 3, 5].map(|at| linear(if dark { night } else { day }, at)));
        for (kind, see) in kinds.iter().enumerate() {
            let seen = colours.map(|c| lab(see.map(|row| dot(row, c))));
            for (i, a) in seen.iter().enumerate() {
                for (j, b) in seen.iter().enumerate().skip(i + 1) {
                    let apart = (0..3).map(|k| (a[k] - b[k]).powi(2)).sum::<f64>().sqrt();
                    assert!(apart > 15.0, "{i} and {j} are {apart:.1} apart (kind {kind}, dark {dark})");
                }
            }
        }
    }
}
