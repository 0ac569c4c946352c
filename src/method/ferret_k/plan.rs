//! The public plan of a run: which steps compute, by which sketch, and what a release counts.
//!
//! It follows from settings, seed and the model's layout, before any record is touched. The trainer asks it, and the replayer does.

use super::settings::{Release, Settings};
use crate::error::Result;
use crate::model::{Layout, ParamId};
use crate::rng::StepSketch;

/// The public plan of a run on a model of some layout.
#[derive(Clone, Debug)]
pub struct Plan {
    settings: Settings,
    /// Rows and columns of every tensor; 0 x 0 where it is not tuned, and so has no bucket.
    pub(super) shapes: Vec<(usize, usize)>,
    /// s of every tensor, where there are any; 0 where it is not tuned.
    scales: Option<Vec<f32>>,
    scale: f32,
}

impl Plan {
    /// Of a run on weights of this layout.
    pub fn new(layout: &Layout, settings: &Settings) -> Result<Self> {
        settings.check()?;
        let mut shapes = vec![(0, 0); layout.len()];
        let tuned = settings.tune.ids(layout)?;
        for &p in &tuned {
            shapes[p.0] = layout.spec(p).matrix();
        }
        let count = |p: ParamId| shapes[p.0].0 * shapes[p.0].1;
        let mut scales = None;
        // The sum of squares of U's entries: the number of weights, where they are ±1.
        let d = match &settings.scales {
            None => tuned.iter().map(|&p| count(p)).sum::<usize>().max(1) as f64,
            Some(given) => {
                let all = scales.insert(given.by_tensor(layout.len(), &tuned)?);
                let squares = tuned.iter().map(|&p| f64::from(all[p.0]) * f64::from(all[p.0]) * count(p) as f64);
                squares.sum::<f64>().max(f64::MIN_POSITIVE)
            }
        };
        let scale = match settings.release {
            // Every sign moves its weights by as much: a step is 1 long.
            Release::Sign => 1.0 / d.sqrt(),
            // |S| = B C, all records of one mind, is as long a step. B is the planned one: the realised batch size is secret.
            Release::Scalar => (f64::from(settings.bits_per_step) / d).sqrt() / settings.batch as f64,
            // A step is about as long as one of signs: S_j is z C of noise, and its share of what a quarter of the batch would make of one mind.
            Release::Level => {
                let (z, agreed) = (settings.noise_multiplier, settings.batch as f64 / 4.0);
                1.0 / (d * (z * z + agreed * agreed / f64::from(settings.bits_per_step))).sqrt()
            }
        };
        Ok(Self { settings: settings.clone(), shapes, scales, scale: scale as f32 })
    }

    /// What it follows from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether `p` has buckets.
    pub fn tunes(&self, p: ParamId) -> bool {
        self.shapes[p.0].0 > 0
    }

    /// U at `step`.
    pub fn sketch(&self, step: u32) -> StepSketch {
        let Settings { seed, sketch, .. } = self.settings;
        StepSketch::new(seed, step, sketch, self.settings.k(), &self.shapes).with_scales(self.scales.clone())
    }

    /// The factor on `Uᵀ b`, before that of the tensor: 1 / sqrt(d) for signs, and in units of C sqrt(k / d) / B for scalars and 1 / sqrt(d (z² + B² / 16 k)) for levels, of which
    /// d is the number of tuned weights, each counted s² times where U has scales.
    pub fn scale(&self) -> f32 {
        self.scale
    }
}
