//! Text out of a decoder, one token at a time, with a key-value cache.

use super::decoder::Decoder;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ops::{Qkv, Rope};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The keys and values of every block for the tokens seen so far.
pub struct Cache<B: Backend> {
    blocks: Vec<(B::Tensor, B::Tensor)>,
    /// The tokens seen so far.
    text: Vec<u32>,
}

impl<B: Backend> Cache<B> {
    /// Tokens seen so far.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Forget all tokens.
    pub fn clear(&mut self) {
        self.text.clear();
    }
}

impl<B: Backend> Decoder<B> {
    /// An empty cache with room for `capacity` tokens.
    pub fn cache(&self, capacity: usize) -> Cache<B> {
        let table = || self.backend.zeros(capacity, self.config.kv_width());
        Cache { blocks: (0..self.config.layers).map(|_| (table(), table())).collect(), text: Vec::new() }
    }

    /// Run `ids` after what is in the cache; the logits of the last of them. On the CPU the same numbers, to the bit, as running
    /// the whole text at once; a GPU adds one row's products in another order.
    pub fn extend(&self, cache: &mut Cache<B>, ids: &[u32]) -> Result<Vec<f32>> {
        let total = cache.len() + ids.len();
        // A text that grows too long for its wavelengths turns by others from its first token on.
        if let Some(length) = self.rope.as_ref().and_then(Rope::changes_after)
            && (1..=length).contains(&cache.len())
            && total > length
        {
            let whole = [&cache.text, ids].concat();
            cache.clear();
            return self.backend.chain(|| self.extend_by_ops(cache, &whole));
        }
        self.backend.chain(|| self.extend_by_ops(cache, ids))
    }

    fn extend_by_ops(&self, cache: &mut Cache<B>, ids: &[u32]) -> Result<Vec<f32>> {
        let b = &self.backend;
        let (past, total) = (cache.len(), cache.len() + ids.len());
        assert!(!ids.is_empty() && total <= self.config.positions, "the caller counts positions");
        let positions: Vec<u32> = (past as u32..total as u32).collect();
        let turns = |rope: &Rope| self.upload_table(ids.len(), rope, rope.table(positions.iter().copied(), total));
        let table = self.rope.as_ref().map(turns);
        let mut x = self.embed(ids, &positions).0;
        for (l, (keys, values)) in cache.blocks.iter_mut().enumerate() {
            let attend =
                |qkv: Qkv<&B::Tensor>| (b.attention_cached(qkv, keys, values, past, &self.config.attention(l)), None);
            x = self.block(l, x, &table, None, |_| false, attend).0;
        }
        cache.text.extend_from_slice(ids);
        let last = b.rows(&x, ids.len() - 1..ids.len());
        b.download(&b.head(&self.norm(&last, self.layout.norm_f).0, self.param(self.layout.head)))
    }
}

/// How the next token is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// 0 takes the most likely token; 1 samples from the model's distribution.
    pub temperature: f64,
    /// Only the k most likely tokens; 0 means all.
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability; 1 means all.
    pub top_p: f64,
}

impl Sampling {
    /// Refuse what has no meaning.
    pub fn check(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(Error::usage(format!("`temperature` {} is not a number from 0 up", self.temperature)));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Error::usage(format!("`top_p` {} is not a probability in (0, 1]", self.top_p)));
        }
        Ok(())
    }

    /// Draw a token from `logits`; ties go to the smaller id.
    pub fn draw(&self, logits: &[f32], random: &mut Draws) -> u32 {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if self.temperature == 0.0 {
            return order.into_iter().min_by(|a, b| by_logit(a, b)).expect("a vocabulary");
        }
        if self.top_k > 0 && self.top_k < order.len() {
            order.select_nth_unstable_by(self.top_k - 1, by_logit);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(by_logit);
        let largest = logits[order[0] as usize] as f64;
        let weight = |id: &u32| ((logits[*id as usize] as f64 - largest) / self.temperature).exp();
        let total: f64 = order.iter().map(weight).sum();
        let mut kept = 0.0;
        let mut reached = 0;
        while reached < order.len() && kept < self.top_p * total {
            kept += weight(&order[reached]);
            reached += 1;
        }
        order.truncate(reached.max(1));
        let mut at = random.uniform() * order.iter().map(weight).sum::<f64>();
        for id in &order {
            at -= weight(id);
            if at < 0.0 {
                return *id;
            }
        }
        order[order.len() - 1]
    }
}

/// Seeded uniform numbers for sampling text; has nothing to do with the randomness of private training.
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// The same draws for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Generate `count` tokens after `prompt`, or as many as the context has room for, handing each to `each` as it comes (which
/// returns false to stop). Without `cached`, every token recomputes the whole text: slow, and the same.
pub fn generate<B: Backend>(
    decoder: &Decoder<B>,
    prompt: &[u32],
    count: usize,
    sampling: &Sampling,
    seed: u64,
    cached: bool,
    mut each: impl FnMut(u32) -> Result<bool>,
) -> Result<()> {
    sampling.check()?;
    let (config, limit) = (&decoder.config, decoder.config.positions);
    if prompt.is_empty() {
        return Err(Error::usage("the prompt has no token: give at least one to start from"));
    }
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= config.vocab) {
        return Err(Error::usage(format!("prompt token {id} is outside the model's vocabulary of {}", config.vocab)));
    }
    if prompt.len() > limit {
        return Err(Error::usage(format!(
            "the prompt has {} tokens, and the model's context is {limit}: shorten it",
            prompt.len()
        )));
    }
    // The last token made is never fed, so it may lie one past the context.
    let count = count.min(limit + 1 - prompt.len());
    let mut draws = Draws::new(seed);
    let mut cache = decoder.cache(limit.min(prompt.len() + count));
    let mut text = prompt.to_vec();
    let mut fed = 0;
    for _ in 0..count {
        if !cached {
            cache.clear();
            fed = 0;
        }
        let logits = decoder.extend(&mut cache, &text[fed..])?;
        fed = text.len();
        if logits.iter().any(|l| l.is_nan()) {
            return Err(Error::Diverged("the model's output is not a number: its weights have overflowed".into()));
        }
        let id = sampling.draw(&logits, &mut draws);
        text.push(id);
        if !each(id)? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: Sampling, logits: &[f32]) -> Vec<f64> {
        let mut draws = Draws::new(3);
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[sampling.draw(logits, &mut draws) as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn draws_follow_the_distribution_that_was_asked_for() {
        let logits = [0.1f64, 0.2, 0.3, 0.4].map(|p| p.ln() as f32);
        let plain = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0 };
        let close = |got: Vec<f64>, want: [f64; 4]| {
            for (g, w) in got.iter().zip(want) {
                assert!((g - w).abs() < 0.015, "{got:?}, not {want:?}");
                assert!(w > 0.0 || *g == 0.0, "{got:?}, not {want:?}");
            }
        };
        close(frequencies(plain, &logits), [0.1, 0.2, 0.3, 0.4]);
        close(frequencies(Sampling { temperature: 0.0, ..plain }, &logits), [0.0, 0.0, 0.0, 1.0]);
        close(frequencies(Sampling { top_k: 2, ..plain }, &logits), [0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0]);
        close(frequencies(Sampling { top_p: 0.65, ..plain }, &logits), [0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0]);
        let squares = [1.0, 4.0, 9.0, 16.0].map(|p| p / 30.0);
        close(frequencies(Sampling { temperature: 0.5, ..plain }, &logits), squares);
    }
}
