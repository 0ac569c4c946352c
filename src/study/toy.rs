//! The paper's appendix: FERRET with Gaussian dither on linear regression, median MSE and inter-quartile band over seeds.
//!
//! The paper gives neither the task's size nor its rates; these are ours. `y = X w* + 0.1 n`, X of 200 x 10, all standard
//! normal. One group; at each step, with probability p, a Poisson batch of mean 50 answers a public direction u on the sphere:
//! `Y = C sign(<g, u>) u`, else `Y = 0`; then `w <- w - eta (Y + U)` with dither `U ~ N(0, sigma^2 I)` **in both
//! branches**, as the appendix has it. sigma is in units of C = 1. Data, mask, directions, batches and the normals
//! behind U are the same at every sigma of a seed, so runs differ by the dither's size alone.

use super::html::{Part, Section};
use super::plot::{Axis, Chart, Series};
use crate::audit::stats::{SeededRng, binomial_upper};
use crate::rng::{Direction, DirectionStream, coin, mask::bernoulli_fires};
use rayon::prelude::*;
use std::fmt::Write;

const RECORDS: usize = 200;
const DIM: usize = 10;
const BATCH: f64 = 50.0;
const NOISE: f64 = 0.1;

/// The dithers of the sweep; the first is the reference.
pub const SIGMAS: [f64; 6] = [0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// The paper's number of seeds.
pub const SEEDS: u64 = 10;

/// How a run goes.
#[derive(Debug, Clone, Copy)]
struct Rates {
    steps: u32,
    every: u32,
    fire: f64,
    eta: f64,
}

const RATES: Rates = Rates { steps: 4000, every: 100, fire: 0.25, eta: 0.02 };

/// One dither at one step, over the seeds.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Standard deviation of the dither, in units of C.
    pub sigma: f64,
    /// Steps done.
    pub step: u32,
    /// Median mean squared error over all records.
    pub median: f64,
    /// Lower quartile.
    pub low: f64,
    /// Upper quartile.
    pub high: f64,
    /// Seeds whose error is below the undithered run's.
    pub below: u64,
    /// Seeds whose error differs from the undithered run's.
    pub differ: u64,
    /// Median of the least error that any weights reach, by least squares.
    pub floor: f64,
}

/// The regression of one seed.
struct Task {
    x: Vec<[f64; DIM]>,
    y: Vec<f64>,
}

fn dot(a: &[f64; DIM], b: &[f64; DIM]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Task {
    fn new(seed: u64) -> Self {
        let mut random = SeededRng::new(seed);
        let truth: [f64; DIM] = std::array::from_fn(|_| random.normal());
        let x: Vec<[f64; DIM]> = (0..RECORDS).map(|_| std::array::from_fn(|_| random.normal())).collect();
        let y = x.iter().map(|row| dot(row, &truth) + NOISE * random.normal()).collect();
        Self { x, y }
    }

    /// Mean squared error of the weights.
    fn error(&self, w: &[f64; DIM]) -> f64 {
        self.x.iter().zip(&self.y).map(|(x, y)| (dot(x, w) - y).powi(2)).sum::<f64>() / RECORDS as f64
    }

    /// The weights of least error: `X^T X w = X^T y` by elimination (positive definite, so without pivoting).
    fn least_squares(&self) -> [f64; DIM] {
        let mut a = [[0.0; DIM + 1]; DIM];
        for (x, y) in self.x.iter().zip(&self.y) {
            for i in 0..DIM {
                for j in 0..DIM {
                    a[i][j] += x[i] * x[j];
                }
                a[i][DIM] += x[i] * y;
            }
        }
        for i in 0..DIM {
            let pivot = a[i];
            for row in a.iter_mut().skip(i + 1) {
                let factor = row[i] / pivot[i];
                row.iter_mut().zip(pivot).for_each(|(v, p)| *v -= factor * p);
            }
        }
        let mut w = [0.0; DIM];
        for i in (0..DIM).rev() {
            let known: f64 = (i + 1..DIM).map(|j| a[i][j] * w[j]).sum();
            w[i] = (a[i][DIM] - known) / a[i][i];
        }
        w
    }

    /// Errors before the first step and after every `every` steps.
    fn run(&self, seed: u64, sigma: f64, rates: Rates) -> Vec<f64> {
        // Streams of their own, drawn from at every step: what is drawn does not depend on sigma.
        let mut batch = SeededRng::new(seed ^ (1 << 32));
        let mut dither = SeededRng::new(seed ^ (2 << 32));
        let mut w = [0.0; DIM];
        let mut errors = vec![self.error(&w)];
        let mut u32s = [0f32; DIM];
        for step in 0..rates.steps {
            let mut update = [0.0; DIM];
            if bernoulli_fires(seed, step, 0, rates.fire) {
                DirectionStream::new(seed, step, 0, Direction::Sphere, DIM).fill(0, &mut u32s);
                let u: [f64; DIM] = u32s.map(f64::from);
                // <g, u> of the batch's squared error, up to a positive factor.
                let mut inner = 0.0;
                for (x, y) in self.x.iter().zip(&self.y) {
                    if batch.uniform() < BATCH / RECORDS as f64 {
                        inner += (dot(x, &w) - y) * dot(x, &u);
                    }
                }
                let sign = if inner == 0.0 { f64::from(coin(seed, step, 0)) } else { inner.signum() };
                update = u.map(|u| sign * u);
            }
            for (w, y) in w.iter_mut().zip(update) {
                *w -= rates.eta * (y + sigma * dither.normal());
            }
            if (step + 1) % rates.every == 0 {
                errors.push(self.error(&w));
            }
        }
        errors
    }
}

/// The `share` quantile, by linear interpolation between the sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (at - at.floor()) * (above - below)
}

/// Run every dither of [`SIGMAS`] on seeds `0 .. seeds` (at least one): points by sigma, then by step.
pub fn sweep(seeds: u64) -> Vec<Point> {
    sweep_at(seeds.max(1), RATES)
}

fn sweep_at(seeds: u64, rates: Rates) -> Vec<Point> {
    let runs: Vec<(f64, Vec<Vec<f64>>)> = (0..seeds)
        .into_par_iter()
        .map(|seed| {
            let task = Task::new(seed);
            let runs = SIGMAS.iter().map(|&sigma| task.run(seed, sigma, rates)).collect();
            (task.error(&task.least_squares()), runs)
        })
        .collect();
    let middle = |mut values: Vec<f64>, share| {
        values.sort_by(f64::total_cmp);
        quantile(&values, share)
    };
    let floor = middle(runs.iter().map(|r| r.0).collect(), 0.5);
    let mut out = Vec::new();
    for (index, &sigma) in SIGMAS.iter().enumerate() {
        for (place, step) in (0..=rates.steps).step_by(rates.every as usize).enumerate() {
            let errors = || runs.iter().map(|r| r.1[index][place]).collect::<Vec<f64>>();
            let against = || runs.iter().map(|r| (r.1[index][place], r.1[0][place]));
            out.push(Point {
                sigma,
                step,
                median: middle(errors(), 0.5),
                low: middle(errors(), 0.25),
                high: middle(errors(), 0.75),
                below: against().filter(|(a, b)| a < b).count() as u64,
                differ: against().filter(|(a, b)| a != b).count() as u64,
                floor,
            });
        }
    }
    out
}

fn of(points: &[Point], sigma: f64) -> impl Iterator<Item = &Point> {
    points.iter().filter(move |p| p.sigma == sigma)
}

fn name(sigma: f64) -> String {
    if sigma == 0.0 { "no dither".into() } else { format!("\u{3c3} = {sigma}") }
}

/// The training curves: median and inter-quartile band for each dither.
pub fn figure(points: &[Point]) -> String {
    let mut chart = Chart::new("Dither on linear regression: MSE over the run")
        .x(Axis::linear("step"))
        .y(Axis::log("mean squared error"));
    if let (Some(first), Some(last)) = (points.first(), points.last()) {
        let level = vec![(f64::from(first.step), first.floor), (f64::from(last.step), first.floor)];
        chart = chart.series(Series::line("least squares", level).muted().dashed());
    }
    for (colour, sigma) in SIGMAS.into_iter().enumerate() {
        let curve = of(points, sigma).map(|p| (f64::from(p.step), p.median)).collect();
        let band = of(points, sigma).map(|p| (f64::from(p.step), p.low, p.high)).collect();
        chart = chart.series(Series::line(name(sigma), curve).sparse_markers(5).band(band).colour(colour));
    }
    chart.svg()
}

/// The error at the end against the dither; the undithered run as a level line.
pub fn final_figure(points: &[Point]) -> String {
    let last = |sigma| of(points, sigma).last();
    let dithers: Vec<&Point> = SIGMAS.into_iter().filter(|s| *s > 0.0).filter_map(last).collect();
    let mut chart = Chart::new("Dither on linear regression: MSE at the end")
        .x(Axis::log("dither \u{3c3} [C]"))
        .y(Axis::log("mean squared error"));
    if let (Some(none), Some(from), Some(to)) = (last(0.0), dithers.first(), dithers.last()) {
        let level = |value| vec![(from.sigma, value), (to.sigma, value)];
        let band = vec![(from.sigma, none.low, none.high), (to.sigma, none.low, none.high)];
        chart = chart
            .series(Series::line("least squares", level(none.floor)).muted())
            .series(Series::line(name(0.0), level(none.median)).dashed().band(band).colour(0));
    }
    let points = dithers.iter().map(|p| (p.sigma, p.median)).collect();
    let spread = dithers.iter().map(|p| (p.sigma, p.low, p.high)).collect();
    chart.series(Series::line("dithered: median, quartiles", points).markers().errors(spread).colour(1)).svg()
}

/// Two-sided sign test: how often a fair coin lies at least so far from half.
fn sign_test(below: u64, differ: u64) -> f64 {
    let extreme = below.max(differ - below);
    (2.0 * binomial_upper(differ, 0.5, extreme)).min(1.0)
}

/// What the sweep says about each dither, against none: a sentence a line.
pub fn summary(points: &[Point]) -> String {
    let mut out = String::new();
    let Some(none) = of(points, 0.0).last() else { return out };
    let _ = writeln!(
        out,
        "Without dither the median MSE after {} steps is {:.5} (quartiles {:.5}, {:.5}); least squares reach {:.5}.",
        none.step, none.median, none.low, none.high, none.floor
    );
    for p in SIGMAS.into_iter().filter(|s| *s > 0.0).filter_map(|s| of(points, s).last()) {
        let _ = writeln!(
            out,
            "Dither {}: {:.5} (quartiles {:.5}, {:.5}), lower than without in {} of {} seeds (two-sided sign test p = {:.3}).",
            p.sigma,
            p.median,
            p.low,
            p.high,
            p.below,
            p.differ,
            sign_test(p.below, p.differ)
        );
    }
    out
}

/// The sweep as a section of a report.
pub fn section(points: &[Point]) -> Section {
    let about = format!(
        "FERRET with Gaussian dither on linear regression ({RECORDS} records, {DIM} weights, batch {BATCH}, a bit with \
         probability {} a step, steps of {}), median and quartiles over the seeds. The paper states neither size nor rates; \
         these are ours. It reports the lowest median at a dither of 0.01.",
        RATES.fire, RATES.eta
    );
    let mut parts = vec![Part::Prose(about), Part::Plots(vec![figure(points), final_figure(points)])];
    parts.push(Part::Prose(summary(points).trim_end().replace('\n', "\n\n")));
    Section { id: "dither".into(), title: "Appendix: dither on linear regression".into(), parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_squares_leave_no_gradient() {
        for seed in 0..5 {
            let task = Task::new(seed);
            let w = task.least_squares();
            for i in 0..DIM {
                let slope: f64 = task.x.iter().zip(&task.y).map(|(x, y)| (dot(x, &w) - y) * x[i]).sum();
                assert!(slope.abs() < 1e-9, "{slope}");
            }
            // RECORDS - DIM degrees of freedom are left: the expected error is NOISE^2 (1 - DIM / RECORDS).
            let error = task.error(&w) / (NOISE * NOISE);
            assert!((0.7..1.2).contains(&error), "{error}");
        }
    }

    #[test]
    fn bits_alone_reach_least_squares_as_their_step_shrinks() {
        let task = Task::new(3);
        let least = task.error(&task.least_squares());
        let excess = |eta: f64| {
            let rates = Rates { steps: (200.0 / eta) as u32, every: 1, fire: 0.25, eta };
            let errors = task.run(3, 0.0, rates);
            assert!(errors.iter().all(|e| *e >= least), "nothing beats least squares");
            let tail = &errors[errors.len() * 3 / 4..];
            tail.iter().sum::<f64>() / tail.len() as f64 - least
        };
        let (coarse, fine) = (excess(0.08), excess(0.02));
        assert!(fine < 0.35 * coarse, "{coarse} {fine}");
        assert!(fine < 0.5 * least, "{fine} {least}");
    }

    #[test]
    fn a_sweep_is_ordered_repeatable_and_shows_what_dither_costs() {
        let rates = Rates { steps: 3000, every: 500, ..RATES };
        let points = sweep_at(4, rates);
        assert_eq!(points, sweep_at(4, rates));
        assert_eq!(points.len(), SIGMAS.len() * 7);
        assert!(points.iter().all(|p| p.low <= p.median && p.median <= p.high && p.floor <= p.low));
        assert!(of(&points, 0.0).all(|p| p.below == 0 && p.differ == 0));
        let end = |sigma| of(&points, sigma).last().unwrap();
        // All start at the same weights; the largest dither ends far above, the smallest where there is none.
        assert!(points.iter().filter(|p| p.step == 0).all(|p| p.median == points[0].median && p.differ == 0));
        assert!(end(1.0).median > 3.0 * end(0.0).median && end(1.0).below == 0);
        assert!((end(1e-4).median / end(0.0).median).ln().abs() < 0.5);
        for svg in [figure(&points), final_figure(&points)] {
            assert!(svg.starts_with("<svg ") && !svg.contains("NaN"));
        }
    }

    #[test]
    fn dither_moves_silent_steps_too_and_by_its_size() {
        let task = Task::new(5);
        let rates = Rates { steps: 400, every: 400, fire: 0.0, eta: 0.02 };
        assert_eq!(task.run(5, 0.0, rates)[0], task.run(5, 0.0, rates)[1], "no bit, no dither, no step");
        // Without bits w is a random walk: E |w|^2 = DIM steps (eta sigma)^2, and so grows the error, by about |w|^2.
        let sigma = 5.0;
        let expected = DIM as f64 * 400.0 * (0.02 * sigma) * (0.02 * sigma);
        let mean = (0..200u64)
            .map(|seed| {
                let errors = Task::new(seed).run(seed, sigma, rates);
                errors[1] - errors[0]
            })
            .sum::<f64>()
            / 200.0;
        assert!((mean / expected - 1.0).abs() < 0.15, "{mean} {expected}");
    }

    #[test]
    fn quantiles_and_the_sign_test() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!([quantile(&values, 0.25), quantile(&values, 0.5), quantile(&values, 1.0)], [1.75, 2.5, 4.0]);
        assert!((sign_test(0, 10) - 2.0 / 1024.0).abs() < 1e-12);
        assert_eq!(sign_test(5, 10), 1.0);
        assert_eq!(sign_test(0, 0), 1.0);
    }

    #[test]
    fn the_summary_names_every_dither() {
        let points = sweep(SEEDS);
        assert_eq!(summary(&points).lines().count(), SIGMAS.len());
        print!("{}", summary(&points));
    }
}
