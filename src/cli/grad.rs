//! `ferret grad`: a model's gradient on records, for whoever wants to compare it with another framework.

use super::common::{Compute, DataArg, Job, ModelArg, progress};
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::fsio;
use crate::grad::Sum;
use crate::model::{Decoder, Reduction, Weights, checkpoint};
use serde_json::json;
use std::path::PathBuf;

/// The gradient of the mean over records of each record's mean token loss.
///
/// Written under the checkpoint's tensor names, in f32. Records in which no token counts are left out of the mean.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ferret grad --model my-model --data records.jsonl --out grads.safetensors")]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    data: DataArg,
    /// The file to write, a new one
    #[arg(long, short = 'o', value_name = "FILE")]
    out: PathBuf,
    /// Also the norm of each record's own gradient
    #[arg(long)]
    per_sample_norms: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress bar
    #[arg(long, short = 'q')]
    quiet: bool,
    #[command(flatten)]
    compute: Compute,
}

/// Loss, gradients in layout order, and each record's norm if asked for.
type Gradient = (f64, Vec<Vec<f32>>, Option<Vec<f64>>);

struct Work<'a> {
    weights: Weights,
    examples: &'a [Example],
    norms: bool,
    quiet: bool,
}

impl Job for Work<'_> {
    type Output = Gradient;

    fn run<B: Backend>(self, backend: B) -> Result<Gradient> {
        let decoder = Decoder::new(backend, self.weights)?;
        let b = &decoder.backend;
        let counted = self.examples.iter().filter(|e| e.targets() > 0).count();
        let mut sum = Sum::new(b, &decoder.layout, |_| true);
        let bar = progress(self.examples.len() as u64, "records", self.quiet);
        let mut loss = 0.0;
        let mut norms = self.norms.then(Vec::new);
        let rows = if self.norms { 0 } else { crate::eval::ROWS };
        for range in batches::by_rows(self.examples, rows) {
            let batch = batches::batch(&self.examples[range.clone()]);
            let mut weights = batch.weights(Reduction::SampleSum);
            if let Some(norms) = &mut norms {
                // One record at a time: its own gradient first.
                let mut own = Sum::new(b, &decoder.layout, |_| true);
                decoder.backward(&batch, &weights, &mut own);
                norms.push(norm(b, own)?);
            }
            weights.iter_mut().for_each(|w| *w /= counted as f32);
            let losses = b.download(&decoder.backward(&batch, &weights, &mut sum))?;
            loss += batch.sample_means(&losses).iter().sum::<f64>() / counted as f64;
            bar.inc(range.len() as u64);
        }
        bar.finish_and_clear();
        let grads: Vec<Vec<f32>> = sum
            .into_grads()
            .iter()
            .map(|g| b.download(g.as_ref().expect("all were asked for")))
            .collect::<Result<_>>()?;
        if !loss.is_finite() || grads.iter().flatten().any(|g| !g.is_finite()) {
            return Err(Error::Diverged("the loss or its gradient is not finite: the weights have overflowed".into()));
        }
        Ok((loss, grads, norms))
    }
}

fn norm<B: Backend>(b: &B, sum: Sum<B>) -> Result<f64> {
    let mut square = 0.0;
    for grad in sum.into_grads().iter().flatten() {
        square += b.download(grad)?.iter().map(|&g| g as f64 * g as f64).sum::<f64>();
    }
    Ok(square.sqrt())
}

/// The gradient of the mean loss, to a file or as norms.
pub fn run(args: Args) -> Result<()> {
    fsio::must_be_new_file(&args.out)?;
    let (checkpoint, tokenizer) = args.model.open()?;
    let dataset = args.data.open(&checkpoint.weights.config, tokenizer.as_ref(), None)?;
    let (layout, config) = (checkpoint.weights.layout.clone(), checkpoint.weights.config.clone());
    let job = Work {
        weights: checkpoint.weights,
        examples: &dataset.examples,
        norms: args.per_sample_norms,
        quiet: args.quiet,
    };
    let (loss, grads, norms) = args.compute.run(job)?;
    let tensors = layout
        .specs()
        .iter()
        .zip(&grads)
        .map(|(s, g)| (s.name.clone(), s.shape.clone(), checkpoint::in_file(&config, s, g)));
    checkpoint::save_tensors(&args.out, tensors)?;
    if args.json {
        let mut out = json!({"loss": loss});
        if let Some(norms) = &norms {
            out["per_sample_norms"] = json!(norms);
        }
        fsio::print(&format!("{out}\n"))?;
    } else {
        fsio::print(&format!("loss {loss:.6}, {} tensors in {}\n", grads.len(), args.out.display()))?;
        for (i, norm) in norms.iter().flatten().enumerate() {
            fsio::print(&format!("record {}: gradient norm {norm:.6}\n", i + 1))?;
        }
    }
    Ok(())
}
