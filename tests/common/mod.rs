//! What several test files share.
#![allow(dead_code)]

pub mod fixture;

#[cfg(feature = "gpu")]
use ferret::backend::Gpu;
use ferret::data::Example;
use ferret::model::init::Preset;
use ferret::model::{Batch, Config, Weights};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
#[cfg(feature = "gpu")]
use std::sync::OnceLock;

/// The adapter; none if there is none, unless FERRET_REQUIRE_GPU=1.
#[cfg(feature = "gpu")]
pub fn gpu() -> Option<Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = || match Gpu::new(None) {
        Ok(gpu) => {
            println!("adapter: {} ({})", gpu.info().name, gpu.info().driver);
            Some(gpu)
        }
        Err(e) => {
            assert!(std::env::var("FERRET_REQUIRE_GPU").as_deref() != Ok("1"), "FERRET_REQUIRE_GPU=1 is set: {e}");
            println!("skipped: {e}");
            None
        }
    };
    GPU.get_or_init(open).clone()
}

/// [`gpu`] as it is, and with a small binding limit.
#[cfg(feature = "gpu")]
pub fn gpus() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    let limited = || Gpu::with_binding_limit(None, 64 << 10).unwrap();
    GPUS.get_or_init(|| gpu().map_or_else(Vec::new, |gpu| vec![gpu, limited()]))
}

/// A small decoder's shape; `f` may change it.
pub fn config(f: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config {
        vocab: 23,
        positions: 12,
        width: 12,
        layers: 2,
        heads: 3,
        inner: 20,
        // As many as `heads`, unless `f` says otherwise.
        kv_heads: 0,
        ..Preset::Tiny.config()
    };
    f(&mut config);
    if config.kv_heads == 0 {
        (config.kv_heads, config.head_width) = (config.heads, config.width / config.heads);
    }
    config
}

/// A seeded source of test data.
pub struct Random(ChaCha8Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Uniform in -1..1.
    pub fn signed(&mut self) -> f64 {
        (self.0.next_u32() as f64 / u32::MAX as f64) * 2.0 - 1.0
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }
}

/// Random records for `config`, of `least` tokens or more; one of one token has no target.
pub fn records(config: &Config, count: u64, least: usize, seed: u64) -> Vec<Example> {
    let mut random = Random::new(seed);
    let record = |_| {
        let len = least + random.below(config.positions - least);
        Example::all((0..len).map(|_| random.below(config.vocab) as u32).collect())
    };
    (0..count).map(record).collect()
}

/// Weights large enough that every part of the decoder matters.
pub fn weights(config: Config, seed: u64) -> Weights {
    let mut random = Random::new(seed);
    let mut weights = Weights::zeros(config);
    for (spec, tensor) in weights.layout.specs().iter().zip(&mut weights.tensors) {
        let base = if spec.shape.len() == 1 && !spec.bias { 1.0 } else { 0.0 };
        for w in tensor {
            *w = (base + 0.5 * random.signed()) as f32;
        }
    }
    weights
}

/// Samples of these lengths with some targets ignored.
pub fn batch(config: &Config, lengths: &[usize], seed: u64) -> Batch {
    let mut random = Random::new(seed);
    let samples: Vec<(Vec<u32>, Vec<u32>)> = lengths
        .iter()
        .map(|&n| {
            let ids: Vec<u32> = (0..n).map(|_| random.below(config.vocab) as u32).collect();
            let targets = (0..n)
                .map(|_| if random.below(4) == 0 { u32::MAX } else { random.below(config.vocab) as u32 })
                .collect();
            (ids, targets)
        })
        .collect();
    Batch::new(samples.iter().map(|(i, t)| (i.as_slice(), t.as_slice())))
}

/// Every bit of these tensors, end to end.
pub fn bits(tensors: &[Vec<f32>]) -> Vec<u32> {
    tensors.iter().flatten().map(|x| x.to_bits()).collect()
}

/// A byte-level vocabulary: one entry a byte, whose id is the byte.
pub fn byte_vocabulary() -> serde_json::Map<String, serde_json::Value> {
    let mut others = 0;
    let mut vocabulary = serde_json::Map::new();
    for b in 0..=255u8 {
        let c = if matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            char::from(b)
        } else {
            others += 1;
            char::from_u32(0xFF + others).unwrap()
        };
        vocabulary.insert(c.to_string(), b.into());
    }
    vocabulary
}

/// Run `f` on its own pool of `threads` threads.
pub fn in_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}
