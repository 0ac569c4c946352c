//! What a model says about the tokens of records.

use super::Cache;
use crate::audit::score::{TokenStats, compressed_len};
use crate::backend::Backend;
use crate::data::{Example, batches};
use crate::error::{Error, Result};
use crate::eval::ROWS;
use crate::model::Decoder;
use crate::model::tokenizer::Tokenizer;
use crate::ops::cross_entropy::IGNORE;
use crate::ops::token_stats::COLUMNS;

/// Every record's token statistics, over the tokens that count in its loss, in order. `weights_sha256` names the decoder's weights
/// for the cache; `done` hears how many records are finished each time some are, and stops the work by an error.
pub fn token_stats<B: Backend>(
    decoder: &Decoder<B>,
    weights_sha256: &str,
    examples: &[Example],
    cache: &Cache,
    done: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<TokenStats>> {
    let chunks = cache.chunks("token statistics", weights_sha256, examples, done, |chunk, done| {
        let mut values = Vec::new();
        for range in batches::by_rows(chunk, ROWS) {
            let batch = batches::batch(&chunk[range.clone()]);
            let rows = decoder.backend.download(&decoder.token_stats(&batch))?;
            for (row, _) in rows.chunks_exact(COLUMNS).zip(&batch.targets).filter(|(_, t)| **t != IGNORE) {
                if let Some(bad) = row.iter().find(|x| !x.is_finite()) {
                    return Err(Error::Diverged(format!(
                        "a record's log-probability is {bad}: the weights have overflowed or diverged"
                    )));
                }
                values.extend_from_slice(row);
            }
            done(range.len())?;
        }
        Ok(values)
    })?;
    let mut numbers = chunks.iter().flatten().copied();
    let mut stats = Vec::with_capacity(examples.len());
    for example in examples {
        let mut record = TokenStats::default();
        for _ in 0..example.targets() {
            let [Some(log_prob), Some(mean), Some(std), Some(max)] = std::array::from_fn(|_| numbers.next()) else {
                return Err(Error::usage("cached scores do not fit the records: remove the cache's folder"));
            };
            record.log_prob.push(log_prob);
            record.mean_log_prob.push(mean);
            record.std_log_prob.push(std);
            record.max_prob.push(max);
        }
        stats.push(record);
    }
    Ok(stats)
}

/// Each record's mean log-probability a token: the statistic of LiRA and RMIA.
pub fn mean_log_probs(stats: &[TokenStats]) -> Vec<f64> {
    let mean = |s: &TokenStats| s.log_prob.iter().map(|&x| f64::from(x)).sum::<f64>() / s.log_prob.len().max(1) as f64;
    stats.iter().map(mean).collect()
}

const LOG_PROBS: &str = "mean log-probabilities";

/// [`mean_log_probs`] alone, rounded to f32: 4 bytes a record in the cache, under any `name` that decides the weights (a shadow
/// model's settings, say, so that [`cached_log_probs`] finds them before the model is trained again).
pub fn log_probs<B: Backend>(
    decoder: &Decoder<B>,
    name: &str,
    examples: &[Example],
    cache: &Cache,
    done: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<f64>> {
    let chunks = cache.chunks(LOG_PROBS, name, examples, done, |chunk, done| {
        let stats = token_stats(decoder, name, chunk, &Cache::none(), done)?;
        Ok(mean_log_probs(&stats).into_iter().map(|x| x as f32).collect())
    })?;
    Ok(chunks.into_iter().flatten().map(f64::from).collect())
}

/// Remember in the cache what [`log_probs`] gave elsewhere.
pub(super) fn keep_log_probs(name: &str, examples: &[Example], cache: &Cache, found: &[f64]) -> Result<()> {
    cache.keep(LOG_PROBS, name, examples, &found.iter().map(|&x| x as f32).collect::<Vec<_>>())
}

/// What [`log_probs`] left in the cache, if that is all there.
pub fn cached_log_probs(name: &str, examples: &[Example], cache: &Cache) -> Option<Vec<f64>> {
    let found = cache.find(LOG_PROBS, name, examples)?.into_iter().flatten().map(f64::from).collect::<Vec<_>>();
    (found.len() == examples.len()).then_some(found)
}

/// Each record's length after zlib: of the text of the tokens that count, or, without a tokenizer, of their ids in bytes.
pub fn compressed_bytes(examples: &[Example], tokenizer: Option<&Tokenizer>, vocab: usize) -> Result<Vec<usize>> {
    let width = if vocab <= 1 << 8 {
        1
    } else if vocab <= 1 << 16 {
        2
    } else {
        4
    };
    examples
        .iter()
        .map(|example| {
            let counted = example.ids.iter().zip(&example.learn).filter(|(_, l)| **l).map(|(&id, _)| id);
            Ok(match tokenizer {
                Some(tokenizer) => compressed_len(tokenizer.decode(&counted.collect::<Vec<_>>())?.as_bytes()),
                None => {
                    let bytes: Vec<u8> = counted.flat_map(|id| id.to_le_bytes().into_iter().take(width)).collect();
                    compressed_len(&bytes)
                }
            })
        })
        .collect()
}
