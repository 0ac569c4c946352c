//! Is the gradient right? Backward, the directional derivative and central differences, side by side, in double precision.
//!
//! `cargo run --example gradient`

use ferret::backend::{Cpu, Memory};
use ferret::data::{Example, batches};
use ferret::grad::{Sum, TensorTangents};
use ferret::model::{Decoder, Reduction, Weights, init};

fn main() -> ferret::Result<()> {
    let weights = init::random(init::Preset::Tiny.config(), 1)?;
    // Two records of different lengths lie end to end: nothing is padded.
    let batch = batches::batch([&Example::all(vec![1, 2, 3, 4, 5]), &Example::all(vec![9, 8, 7])]);
    let mean = batch.weights(Reduction::SampleMean);
    let loss = |weights: &Weights| -> ferret::Result<f64> {
        let decoder = Decoder::new(Cpu::<f64>::new(), weights.clone())?;
        let losses = decoder.losses(&batch);
        Ok(losses.as_slice().iter().zip(&mean).map(|(l, &w)| l * f64::from(w)).sum())
    };

    // Backward hands the factors of every parameter's gradient to a sink; `Sum` adds them up.
    let decoder = Decoder::new(Cpu::<f64>::new(), weights.clone())?;
    let mut gradient = Sum::new(&decoder.backend, &decoder.layout, |_| true);
    decoder.backward(&batch, &mean, &mut gradient);

    println!("{:<28}{:>16}{:>16}{:>16}", "along", "backward", "jvp", "differences");
    let mut worst = 0f64;
    for (p, spec) in decoder.layout.ids().zip(decoder.layout.specs()) {
        // A direction that moves this parameter alone: +1, -1, +1, ...
        let step: Vec<f32> = (0..spec.len()).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let backward: f64 = gradient.get(p).unwrap().as_slice().iter().zip(&step).map(|(g, &u)| g * f64::from(u)).sum();

        let (rows, cols) = spec.matrix();
        let mut tangents: Vec<_> = decoder.layout.ids().map(|_| None).collect();
        tangents[p.0] = Some(decoder.backend.upload(rows, cols, step.clone())?);
        let along = decoder.jvp(&batch, &TensorTangents(tangents));
        let jvp: f64 = along.as_slice().iter().zip(&mean).map(|(l, &w)| l * f64::from(w)).sum();

        // Weights are f32: a step of 2^-14 is small for the loss and large for their last bit.
        let h = 2f32.powi(-14);
        let at = |h: f32| {
            let mut moved = weights.clone();
            moved.tensors[p.0].iter_mut().zip(&step).for_each(|(w, u)| *w += h * u);
            loss(&moved)
        };
        let difference = (at(h)? - at(-h)?) / (2.0 * f64::from(h));

        println!("{:<28}{backward:>16.9}{jvp:>16.9}{difference:>16.9}", spec.name);
        assert!((backward - jvp).abs() <= 1e-9 * (1.0 + backward.abs()), "{}: backward and jvp differ", spec.name);
        worst = worst.max((backward - difference).abs() / (1.0 + backward.abs()));
    }
    println!("backward and differences agree to {worst:.1e}");
    assert!(worst < 1e-3);
    Ok(())
}
