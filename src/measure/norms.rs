//! Every record's gradient norm at the audited weights.

use super::Cache;
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::eval::ROWS;
use crate::grad::Norms;
use crate::model::{Decoder, Reduction};
use crate::ops::sample_norm::COLUMNS;

/// The L2 norm over all parameters of the gradient of each record's mean token loss, in order. No gradient is formed (see
/// [`Norms`]); costs about three forwards. `done` as in [`super::token_stats`].
pub fn gradient_norms<B: Backend>(
    decoder: &Decoder<B>,
    weights_sha256: &str,
    examples: &[Example],
    cache: &Cache,
    done: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<f64>> {
    let b = &decoder.backend;
    let chunks = cache.chunks("gradient norms", weights_sha256, examples, done, |chunk, done| {
        let mut values = Vec::with_capacity(chunk.len());
        for range in batches::by_rows(chunk, ROWS) {
            let batch = batches::batch(&chunk[range.clone()]);
            let mut norms = Norms::new(b, &decoder.layout, batch.segments.len(), |_| true);
            decoder.backward(&batch, &batch.weights(Reduction::SampleSum), &mut norms);
            let mut squares = vec![0.0; batch.segments.len()];
            for p in decoder.layout.ids() {
                let Some(column) = norms.squares(p) else { continue };
                let column = b.download(column)?;
                squares.iter_mut().zip(column.iter().step_by(COLUMNS)).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            if let Some(bad) = squares.iter().find(|x| !x.is_finite()) {
                return Err(Error::Diverged(format!(
                    "a record's squared gradient norm is {bad}: the weights have diverged"
                )));
            }
            values.extend(squares.into_iter().map(|x| x.max(0.0).sqrt() as f32));
            done(range.len())?;
        }
        Ok(values)
    })?;
    Ok(chunks.into_iter().flatten().map(f64::from).collect())
}
