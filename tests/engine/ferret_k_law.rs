//! The law of what FERRET-k releases, by brute force.

use crate::common::{Random, weights};
use crate::ferret_k::{clipped, nearest, records, settings, shape, size, sketched, trainer};
use ferret::method::Run;
use ferret::method::ferret_k::{Plan, Release, Releases};
use ferret::rng::Secret;

/// The standard normal distribution function, by its integral.
fn phi(x: f64) -> f64 {
    let (n, h) = (2000, x / 2000.0);
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    0.5 + (0..n).map(|i| h * density((f64::from(i) + 0.5) * h)).sum::<f64>()
}

/// Over many keys: every sign is plus as often as all subsets of the records and the noise say, and signs of different buckets share no noise.
#[test]
fn signs_have_the_law_of_a_poisson_sample_with_gaussian_noise() {
    let (base, records) = (weights(shape(), 1), records(5, 6));
    let s = settings(|s| (s.records, s.batch, s.bits_per_step, s.epochs) = (5, 2, 6, 1));
    let sketch = Plan::new(&base.layout, &s).unwrap().sketch(0);
    let all: Vec<Vec<f64>> =
        sketched(&base, &sketch, &records.iter().collect::<Vec<_>>()).into_iter().map(|v| clipped(&s, v)).collect();
    let (k, q) = (sketch.k(), 0.4f64);
    let (mut plus, mut both) = (vec![0.0; k], vec![0.0; k - 1]);
    for subset in 0..32u32 {
        let chance: f64 = (0..5).map(|i| if subset >> i & 1 == 1 { q } else { 1.0 - q }).product();
        let sum = |b: usize| (0..5).filter(|i| subset >> i & 1 == 1).map(|i| all[i][b]).sum::<f64>();
        let each: Vec<f64> = (0..k).map(|b| phi(sum(b) / s.noise_multiplier)).collect();
        plus.iter_mut().zip(&each).for_each(|(p, e)| *p += chance * e);
        both.iter_mut().zip(each.windows(2)).for_each(|(p, e)| *p += chance * e[0] * e[1]);
    }
    assert!(plus.iter().any(|p| (p - 0.5).abs() > 0.05), "the test needs records that matter: {plus:?}");
    let trials = 6000;
    let (mut found, mut together) = (vec![0.0; k], vec![0.0; k - 1]);
    for seed in 0..trials {
        let secret = Secret::insecure(1000 + seed);
        let mut trainer = trainer(&base, &s, None, &secret, &records);
        trainer.step().unwrap().unwrap();
        let Releases::Signs(signs) = trainer.releases() else { panic!("signs") };
        found.iter_mut().zip(signs).for_each(|(f, s)| *f += f64::from(u8::from(*s == 1)));
        together.iter_mut().zip(signs.windows(2)).for_each(|(f, s)| *f += f64::from(u8::from(s == [1, 1])));
    }
    let n = trials as f64;
    for (p, f) in plus.iter().chain(&both).zip(found.iter().chain(&together)) {
        assert!((f / n - p).abs() < 5.0 * (p * (1.0 - p) / n).sqrt(), "{} of the time, not {p}", f / n);
    }
}

/// Over many keys: every code is as frequent, and the size as large, as simulated samples and noise say that take nothing from the trainer.
#[test]
fn levels_have_the_law_of_a_poisson_sample_with_gaussian_noise() {
    let (base, records) = (weights(shape(), 1), records(5, 6));
    let s = settings(|s| {
        (s.records, s.batch, s.bits_per_step, s.epochs, s.release) = (5, 2, 6, 1, Release::Level);
    });
    let sketch = Plan::new(&base.layout, &s).unwrap().sketch(0);
    let all: Vec<Vec<f64>> =
        sketched(&base, &sketch, &records.iter().collect::<Vec<_>>()).into_iter().map(|v| clipped(&s, v)).collect();
    let k = sketch.k();
    let count = |found: &mut Vec<f64>, codes: &[u8]| {
        codes.iter().enumerate().for_each(|(b, code)| found[4 * b + usize::from(*code)] += 1.0);
    };
    let (draws, mut random) = (200_000, Random::new(77));
    let (mut law, mut sizes) = (vec![0.0; 4 * k], [0.0; 2]);
    for _ in 0..draws {
        // Box and Muller's normals, by the standard library.
        let mut normal = || {
            let [u, v] = [(); 2].map(|()| (random.below(1 << 40) + 1) as f64 / (1u64 << 40) as f64);
            (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        };
        let mut sum: Vec<f64> = (0..k).map(|_| s.noise_multiplier * normal()).collect();
        for v in &all {
            if random.below(5) < 2 {
                sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += v);
            }
        }
        let r = size(&sum);
        count(&mut law, &sum.iter().map(|x| nearest(*x, r)).collect::<Vec<_>>());
        (sizes[0], sizes[1]) = (sizes[0] + r, sizes[1] + r * r);
    }
    let (mean, square) = (sizes[0] / f64::from(draws), sizes[1] / f64::from(draws));
    let trials = 6000;
    let (mut found, mut size) = (vec![0.0; 4 * k], 0.0);
    for seed in 0..trials {
        let secret = Secret::insecure(1000 + seed);
        let mut trainer = trainer(&base, &s, None, &secret, &records);
        trainer.step().unwrap().unwrap();
        let Releases::Levels(levels) = trainer.releases() else { panic!("levels") };
        count(&mut found, &levels.codes);
        size += f64::from(levels.sizes[0]) / 1024.0;
    }
    let n = trials as f64;
    for (p, f) in law.iter().map(|p| p / f64::from(draws)).zip(found) {
        assert!((f / n - p).abs() < 5.2 * (p * (1.0 - p) / n).sqrt(), "{} of the time, not {p}", f / n);
    }
    assert!(
        law.chunks(4).any(|p| (p[0] + p[2] - p[1] - p[3]).abs() > 0.05 * f64::from(draws)),
        "records that matter: {law:?}"
    );
    assert!((size / n - mean).abs() < 5.2 * ((square - mean * mean) / n).sqrt(), "{} is not {mean}", size / n);
}
