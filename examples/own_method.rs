//! A private method of one's own, behind the boundary: forward gradients with noise.
//!
//! `cargo run --release --example own_method`
//!
//! Every step takes a public random direction u. Each sampled record gives its derivative <g_i, u>, clipped to [-1, 1], by one forward
//! pass and no backward; the sum gets Gaussian noise and leaves; the weights move along u. A record changes the sum by at most 1,
//! so every step is a subsampled Gaussian, and an accountant can charge for the run.

use ferret::backend::{Cpu, Memory};
use ferret::data::{Example, batches};
use ferret::grad::GroupDirection;
use ferret::method::{Crossing, Mechanism};
use ferret::model::{Decoder, Layout, Reduction, Weights, init};
use ferret::privacy::{Accountant, Event, Pld};
use ferret::rng::{Direction, DirectionStream, Secret, SecretStream};

const NOISE: f64 = 2.0;
const STEPS: u32 = 60;
/// Released numbers are multiples of 2^-20.
const GRID: f64 = 1_048_576.0;

/// One release: the noised sum of clipped derivatives along a direction.
struct Slope<'a> {
    decoder: &'a Decoder<Cpu<f32>>,
    direction: &'a GroupDirection,
}

impl Mechanism for Slope<'_> {
    type Release = f64;

    fn event(&self, sampling_rate: f64) -> Option<Event> {
        Some(Event::SubsampledGaussian { noise_multiplier: NOISE, sampling_rate, steps: 1 })
    }

    fn release(&self, sample: &[&Example], secret: &mut SecretStream) -> ferret::Result<f64> {
        let mut sum = 0.0;
        if !sample.is_empty() {
            let batch = batches::batch(sample.iter().copied());
            // d loss / d u of every token, weighted to each record's mean loss.
            let slopes = self.decoder.backend.download(&self.decoder.jvp(&batch, self.direction))?;
            let weights = batch.weights(Reduction::SampleSum);
            for rows in batch.segments.iter() {
                let own: f64 = rows.map(|i| f64::from(slopes[i]) * f64::from(weights[i])).sum();
                // Not a number counts as nothing: the bound must hold whatever the model does.
                sum += if own.is_finite() { own.clamp(-1.0, 1.0) } else { 0.0 };
            }
        }
        // On a public grid: the last bits of a float would tell what the noise was added to.
        Ok(((sum + NOISE * secret.gaussian()) * GRID).round() / GRID)
    }
}

/// The direction of a step over all parameters, on the sphere: public, and known before any record is touched.
fn direction(layout: &Layout, step: u32) -> (DirectionStream, GroupDirection) {
    let all: Vec<_> = layout.ids().collect();
    let stream = DirectionStream::new(7, step, 0, Direction::Sphere, layout.scalars());
    (stream.clone(), GroupDirection::new(stream, &all, layout))
}

fn main() -> ferret::Result<()> {
    let records: Vec<Example> = (0..500).map(|i| Example::all((i..i + 12).map(|t| t % 50).collect())).collect();
    let batch = 50;
    let mut crossing = Crossing::new(&records, batch, Secret::from_system()?)?;
    let mut weights: Weights = init::random(init::Preset::Tiny.config(), 1)?;
    let rate = 3.0 / batch as f64;
    for step in 0..STEPS {
        let decoder = Decoder::new(Cpu::<f32>::new(), weights)?;
        let (stream, along) = direction(&decoder.layout, step);
        let slope = crossing.release(&Slope { decoder: &decoder, direction: &along })?;
        // From here on everything is post-processing of the release.
        weights = decoder.weights()?;
        let mut at = 0;
        for tensor in &mut weights.tensors {
            let mut u = vec![0.0; tensor.len()];
            stream.fill(at, &mut u);
            at += tensor.len();
            tensor.iter_mut().zip(u).for_each(|(w, u)| *w -= (rate * slope) as f32 * u);
        }
    }
    let spent = Pld::default().epsilon(&crossing.event()?, 1e-5)?;
    println!("{STEPS} numbers were released about {} records: ({:.3}, 1e-5)-DP", records.len(), spent.upper);
    assert!(spent.upper < 2.0 && weights.tensors.iter().flatten().all(|w| w.is_finite()));
    Ok(())
}
