//! Secrets that a model says when it is given what stood before them.

use super::canary::Planting;
use crate::audit::canary::Attempts;
use crate::backend::Backend;
use crate::error::{Error, Result, quoted};
use crate::model::Decoder;
use crate::model::generate::{Sampling, generate};
use crate::model::tokenizer::Tokenizer;
use crate::ranks::Ranks;
use std::collections::BTreeMap;

/// How the prompts of canaries are continued: greedily, and `samples` times by sampling.
pub struct Decoding<'a> {
    /// The canaries.
    pub planting: &'a Planting,
    /// The model's.
    pub tokenizer: &'a Tokenizer,
    /// Sampled continuations of each prompt.
    pub samples: usize,
    /// Temperature of the sampled continuations.
    pub temperature: f64,
    /// Seed of the sampled continuations.
    pub seed: u64,
    /// Who decodes: every one of them calls [`attempts`] with the same, and gets all.
    pub ranks: &'a dyn Ranks,
}

/// Continue every canary's prompt. Canaries with the same prompt share the continuations. `done` hears how many canaries are finished.
pub fn attempts<B: Backend>(
    decoder: &Decoder<B>,
    decoding: &Decoding,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Attempts>> {
    let Decoding { planting, ranks, .. } = decoding;
    // The canaries of each prompt, the first of which stands for all; prompts in the order of those.
    let mut prompts: Vec<(String, Vec<usize>)> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for (i, planted) in planting.canaries.iter().enumerate() {
        // A blank before the secret belongs to the secret's first token.
        let prompt = planted.format.prompt().trim_end().to_owned();
        let at = *known.entry(prompt.clone()).or_insert(prompts.len());
        if at == prompts.len() {
            prompts.push((prompt, Vec::new()));
        }
        prompts[at].1.push(i);
    }
    let mut own = Vec::new();
    for (prompt, canaries) in prompts.iter().skip(ranks.rank()).step_by(ranks.size()) {
        own.push(decoding.attempt(decoder, prompt, canaries[0])?);
        done(canaries.len())?;
    }
    let texts = ranks.gather("continuations", &serde_json::to_vec(&own).expect("strings"))?;
    let broken = || Error::Rank("a rank sent no continuations".into());
    let lists: Vec<Vec<Attempts>> =
        texts.iter().map(|text| serde_json::from_slice(text).map_err(|_| broken())).collect::<Result<_>>()?;
    let mut all = vec![Attempts::default(); planting.canaries.len()];
    for (i, (_, canaries)) in prompts.iter().enumerate() {
        let rank = i % ranks.size();
        let attempt = lists[rank].get(i / ranks.size()).ok_or_else(broken)?;
        canaries.iter().for_each(|&canary| all[canary] = attempt.clone());
        if rank != ranks.rank() {
            done(canaries.len())?;
        }
    }
    Ok(all)
}

impl Decoding<'_> {
    /// What `decoder` makes of the prompt of this canary.
    fn attempt<B: Backend>(&self, decoder: &Decoder<B>, prompt: &str, canary: usize) -> Result<Attempts> {
        let &Self { planting, tokenizer, samples, temperature, seed, .. } = self;
        let ids = match (tokenizer.encode(prompt)?, decoder.config.eos) {
            (ids, _) if !ids.is_empty() => ids,
            (_, Some(eos)) => vec![eos],
            _ => {
                return Err(Error::usage(format!(
                    "the canary format \"{}\" begins with its secret, and the model has no token to begin a text with: \
                     there is nothing to continue",
                    quoted(&planting.pattern)
                )));
            }
        };
        // Two tokens more than this canary's own secret takes: others of its format may be longer.
        let whole = tokenizer.encode(&planting.canaries[canary].canary.text)?.len();
        let count = whole.saturating_sub(ids.len()) + 2;
        let continuation = |sampling: &Sampling, seed: u64| -> Result<String> {
            let mut made = Vec::with_capacity(count);
            generate(decoder, &ids, count, sampling, seed, true, |id| {
                made.push(id);
                Ok(decoder.config.eos != Some(id))
            })?;
            tokenizer.decode(&made)
        };
        let greedy = continuation(&Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 }, seed)?;
        let sampling = Sampling { temperature, top_k: 0, top_p: 1.0 };
        let base = (canary as u64) << 32;
        let sampled =
            (0..samples as u64).map(|k| continuation(&sampling, seed.wrapping_add(base + k))).collect::<Result<_>>()?;
        Ok(Attempts { greedy, sampled })
    }
}
