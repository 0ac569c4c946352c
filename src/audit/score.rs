//! One number a record, from what the models say about its tokens. Larger always means "more likely a member".

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// What one model says about one record, one entry a predicted token.
///
/// With `p` the model's distribution before token `t` and `x_t` the token that came:
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenStats {
    /// `ln p(x_t)`.
    pub log_prob: Vec<f32>,
    /// `E_{z~p} ln p(z)`, the negative entropy; empty when it was not computed.
    pub mean_log_prob: Vec<f32>,
    /// The standard deviation of `ln p(z)` under `z ~ p`; empty when it was not computed.
    pub std_log_prob: Vec<f32>,
    /// `max_z p(z)`; empty when it was not computed.
    pub max_prob: Vec<f32>,
}

/// All that the scores of one record are computed from. What is missing makes the scores that need it unavailable.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordStats {
    /// Under the model that is audited.
    pub tuned: TokenStats,
    /// Under the base model, for reference calibration (only `log_prob` is read).
    pub base: Option<TokenStats>,
    /// Length of the scored text after compression, from [`compressed_len`].
    pub compressed_bytes: Option<usize>,
    /// L2 norm of the record's gradient at the tuned weights.
    pub gradient_norm: Option<f64>,
}

/// The scores of the literature.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Score {
    /// Mean `ln p(x_t)`, the negative loss (Yeom et al. 2018).
    Loss,
    /// `ln(perplexity under the base / perplexity under the tuned model)` (reference calibration: Watson et al. 2022).
    PerplexityRatio,
    /// Mean `max_z p(z)`.
    Confidence,
    /// Mean `ln p(x_t)` of the given fraction of least likely tokens (Shi et al. 2024).
    MinK(f64),
    /// The same of `(ln p(x_t) - mean) / std` (min-k%++: Zhang et al. 2025).
    MinKPlusPlus(f64),
    /// Minus the model's code length over the compressor's, both in nats (after Carlini et al. 2021, who divide the
    /// mean loss; the total is used here, because the mean over a total would mostly rank records by length).
    Zlib,
    /// Minus the norm of the record's gradient: the fit of a record that was trained on is flatter.
    GradientNorm,
}

impl Score {
    /// Every score, min-k at the 20 % its authors recommend.
    pub const ALL: [Score; 7] = [
        Score::Loss,
        Score::PerplexityRatio,
        Score::Confidence,
        Score::MinK(0.2),
        Score::MinKPlusPlus(0.2),
        Score::Zlib,
        Score::GradientNorm,
    ];

    /// The name in tables and files.
    pub fn name(&self) -> String {
        match self {
            Score::Loss => "loss".into(),
            Score::PerplexityRatio => "perplexity-ratio".into(),
            Score::Confidence => "confidence".into(),
            Score::MinK(fraction) => format!("min-{}%", (fraction * 1e4).round() / 100.0),
            Score::MinKPlusPlus(fraction) => format!("min-{}%++", (fraction * 1e4).round() / 100.0),
            Score::Zlib => "zlib".into(),
            Score::GradientNorm => "gradient-norm".into(),
        }
    }

    /// The score of one record; `None` when the statistics it needs were not computed.
    ///
    /// # Errors
    /// A record with no predicted token has no score, lengths must agree, and min-k's fraction lies in (0, 1].
    pub fn of(&self, record: &RecordStats) -> Result<Option<f64>> {
        let tuned = &record.tuned;
        let tokens = tuned.log_prob.len();
        if tokens == 0 {
            return Err(Error::usage("a record without a predicted token has no score: leave out empty records"));
        }
        Ok(match *self {
            Score::Loss => Some(mean(&tuned.log_prob)),
            Score::PerplexityRatio => match &record.base {
                Some(base) => {
                    same_length("base log-probabilities", base.log_prob.len(), tokens)?;
                    Some(mean(&tuned.log_prob) - mean(&base.log_prob))
                }
                None => None,
            },
            Score::Confidence => available(&tuned.max_prob, "maximal probabilities", tokens)?.map(mean),
            Score::MinK(fraction) => {
                Some(mean_of_lowest(tuned.log_prob.iter().map(|&x| f64::from(x)).collect(), fraction)?)
            }
            Score::MinKPlusPlus(fraction) => {
                let means = available(&tuned.mean_log_prob, "mean log-probabilities", tokens)?;
                let stds = available(&tuned.std_log_prob, "log-probability deviations", tokens)?;
                match (means, stds) {
                    (Some(means), Some(stds)) => {
                        let standard = |((&x, &mean), &std): ((&f32, &f32), &f32)| {
                            // A deterministic or uniform distribution has no spread: every likely token is at its mean.
                            (f64::from(x) - f64::from(mean)) / f64::from(std).max(1e-6)
                        };
                        let z = tuned.log_prob.iter().zip(means).zip(stds).map(standard).collect();
                        Some(mean_of_lowest(z, fraction)?)
                    }
                    _ => None,
                }
            }
            Score::Zlib => record.compressed_bytes.map(|bytes| {
                let model_nats: f64 = tuned.log_prob.iter().map(|&x| f64::from(x)).sum();
                model_nats / (bytes.max(1) as f64 * 8.0 * std::f64::consts::LN_2)
            }),
            Score::GradientNorm => record.gradient_norm.map(|norm| -norm),
        })
    }

    /// The scores of many records; `None` unless every record has the statistics.
    pub fn of_all(&self, records: &[RecordStats]) -> Result<Option<Vec<f64>>> {
        records.iter().map(|record| self.of(record)).collect()
    }
}

/// Bytes of `text` after zlib at its default level (6), header and checksum included, as the literature counts them.
pub fn compressed_len(text: &[u8]) -> usize {
    miniz_oxide::deflate::compress_to_vec_zlib(text, 6).len()
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64
}

/// Mean of the `ceil`-free lowest share: `max(1, floor(fraction T))` entries, as in the authors' code.
fn mean_of_lowest(mut values: Vec<f64>, fraction: f64) -> Result<f64> {
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(Error::usage(format!("min-k averages a fraction in (0, 1] of the tokens, found {fraction}")));
    }
    let count = ((values.len() as f64 * fraction + 1e-9) as usize).max(1);
    values.sort_by(f64::total_cmp);
    Ok(values[..count].iter().sum::<f64>() / count as f64)
}

fn same_length(what: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{expected} tokens were scored but there are {found} {what}: score both on the same tokens"
    )))
}

/// The column when it was computed, with its length checked.
fn available<'a>(column: &'a [f32], what: &str, tokens: usize) -> Result<Option<&'a [f32]>> {
    if column.is_empty() {
        return Ok(None);
    }
    same_length(what, column.len(), tokens)?;
    Ok(Some(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RecordStats {
        RecordStats {
            tuned: TokenStats {
                log_prob: vec![-1.0, -4.0, -0.5, -2.5, -0.25],
                mean_log_prob: vec![-1.5, -2.0, -0.5, -3.0, -0.25],
                std_log_prob: vec![0.5, 1.0, 0.25, 0.25, 0.0],
                max_prob: vec![0.5, 0.25, 0.75, 0.5, 1.0],
            },
            base: Some(TokenStats { log_prob: vec![-2.0, -4.0, -1.5, -3.5, -1.25], ..TokenStats::default() }),
            compressed_bytes: Some(10),
            gradient_norm: Some(3.0),
        }
    }

    #[test]
    fn scores_by_hand() {
        let record = record();
        let of = |score: Score| score.of(&record).unwrap().unwrap();
        assert!((of(Score::Loss) + 1.65).abs() < 1e-12);
        assert!((of(Score::PerplexityRatio) - 0.8).abs() < 1e-12);
        assert!((of(Score::Confidence) - 0.6).abs() < 1e-12);
        assert!((of(Score::MinK(0.4)) + 3.25).abs() < 1e-12);
        assert!((of(Score::MinK(0.01)) + 4.0).abs() < 1e-12, "at least one token");
        // z = 1, -2, 0, 2, 0: the lowest two are -2 and 0.
        assert!((of(Score::MinKPlusPlus(0.4)) + 1.0).abs() < 1e-12);
        assert!((of(Score::Zlib) + 8.25 / (80.0 * 2f64.ln())).abs() < 1e-12);
        assert_eq!(of(Score::GradientNorm), -3.0);
    }

    #[test]
    fn missing_statistics_make_a_score_unavailable_and_wrong_ones_an_error() {
        let mut bare =
            RecordStats { tuned: TokenStats { log_prob: vec![-1.0], ..Default::default() }, ..Default::default() };
        for score in
            [Score::PerplexityRatio, Score::Confidence, Score::MinKPlusPlus(0.2), Score::Zlib, Score::GradientNorm]
        {
            assert_eq!(score.of(&bare).unwrap(), None);
        }
        bare.tuned.max_prob = vec![0.1, 0.2];
        assert!(Score::Confidence.of(&bare).unwrap_err().to_string().contains("1 tokens"));
        assert!(Score::Loss.of(&RecordStats::default()).is_err());
        assert!(Score::MinK(0.0).of(&record()).is_err());
    }

    #[test]
    fn compressor_sees_repetition() {
        let repeated = "the same words again ".repeat(50);
        assert!(compressed_len(repeated.as_bytes()) < repeated.len() / 10);
        // zlib's own answer for "hello" is 13 bytes: 2 header, 7 fixed-Huffman, 4 checksum.
        assert_eq!(compressed_len(b"hello"), 13);
    }
}
