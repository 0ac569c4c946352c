//! Fresh weights as GPT-2 has them: N(0, 0.02), residual projections narrower by 1/sqrt(2 L), unit gains, no biases.

use super::config::{Activation, Config};
use super::layout::Layout;
use super::weights::Weights;
use crate::error::{Error, Result};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use std::f64::consts::TAU;

/// A shape that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Preset {
    /// 124M parameters: 12 blocks, 768 wide.
    Gpt2,
    /// 82M parameters: 6 blocks, 768 wide.
    Distilgpt2,
    /// 355M parameters: 24 blocks, 1024 wide.
    Gpt2Medium,
    /// 125k parameters: 2 blocks, 64 wide, a vocabulary of 256, 128 positions.
    Tiny,
}

impl Preset {
    /// The shape.
    pub fn config(self) -> Config {
        let (layers, heads, width) = match self {
            Self::Gpt2 => (12, 12, 768),
            Self::Distilgpt2 => (6, 12, 768),
            Self::Gpt2Medium => (24, 16, 1024),
            Self::Tiny => (2, 4, 64),
        };
        let tiny = self == Self::Tiny;
        Config {
            vocab: if tiny { 256 } else { 50257 },
            positions: if tiny { 128 } else { 1024 },
            width,
            layers,
            heads,
            inner: 4 * width,
            norm_epsilon: 1e-5,
            activation: Activation::GeluTanh,
            tied: true,
            scale_by_width: true,
            scale_by_layer: false,
            init_std: 0.02,
            eos: if tiny { None } else { Some(50256) },
        }
    }
}

/// GPT-2's initialisation of `config`; the same `seed` gives the same bits on every machine and thread count.
///
/// Matrices and embeddings: N(0, s^2), s = `init_std`; `c_proj.weight`, which add to the residual stream 2 L times:
/// s / sqrt(2 L); gains 1, biases 0. Parameter i draws from stream i of ChaCha20 keyed by `seed`.
pub fn random(config: Config, seed: u64) -> Result<Weights> {
    let layout = Layout::new(&config);
    let narrow = config.init_std / ((2 * config.layers) as f64).sqrt();
    let specs = layout.specs();
    let tensors = (0..specs.len())
        .into_par_iter()
        .map(|i| {
            let name = &specs[i].name;
            let mut tensor = Vec::new();
            tensor.try_reserve_exact(specs[i].len()).map_err(|_| {
                Error::usage(format!("{name} {:?} does not fit into memory: choose smaller sizes", specs[i].shape))
            })?;
            tensor.resize(specs[i].len(), 0.0);
            if specs[i].shape.len() == 2 {
                let std = if name.ends_with("c_proj.weight") { narrow } else { config.init_std };
                let mut rng = ChaCha20Rng::seed_from_u64(seed);
                rng.set_stream(i as u64);
                normal(&mut rng, std, &mut tensor);
            } else if name.ends_with(".weight") {
                tensor.fill(1.0);
            }
            Ok(tensor)
        })
        .collect::<Vec<Result<Vec<f32>>>>()
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    Ok(Weights { config, layout, tensors })
}

/// Box-Muller: r cos a and r sin a, r = sqrt(-2 ln u), a = 2 pi v, with u in (0, 1] and v in [0, 1). `libm` rather than
/// the system's mathematics library, so that the bits are the same everywhere.
fn normal(rng: &mut ChaCha20Rng, std: f64, out: &mut [f32]) {
    const UNIT: f64 = 1.0 / (1u64 << 53) as f64;
    for pair in out.chunks_mut(2) {
        let u = ((rng.next_u64() >> 11) + 1) as f64 * UNIT;
        let v = (rng.next_u64() >> 11) as f64 * UNIT;
        let radius = std * libm::sqrt(-2.0 * libm::log(u));
        let (sin, cos) = libm::sincos(TAU * v);
        pair[0] = (radius * cos) as f32;
        if let Some(second) = pair.get_mut(1) {
            *second = (radius * sin) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(x: &[f32]) -> (f64, f64) {
        let n = x.len() as f64;
        let mean = x.iter().map(|&x| x as f64).sum::<f64>() / n;
        let var = x.iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>() / n;
        (mean, var.sqrt())
    }

    #[test]
    fn widths_are_gpt2s() {
        let w = random(Preset::Tiny.config(), 1).unwrap();
        let ids = w.layout.blocks[1];
        // 4096 to 16384 scalars: the standard deviation is known to about 1.1 %.
        for (id, std) in [
            (w.layout.tokens, 0.02),
            (ids.qkv.0, 0.02),
            (ids.mlp_in.0, 0.02),
            (ids.attn_out.0, 0.01),
            (ids.mlp_out.0, 0.01),
        ] {
            let (mean, found) = moments(w.get(id));
            assert!((found / std - 1.0).abs() < 0.04 && mean.abs() < 0.05 * std, "{id:?}: {mean} {found}");
        }
        assert!(w.get(ids.norm_1.0).iter().all(|&x| x == 1.0) && w.get(w.layout.norm_f.0).iter().all(|&x| x == 1.0));
        for bias in [ids.norm_1.1, ids.qkv.1, ids.attn_out.1, ids.mlp_in.1, ids.mlp_out.1, w.layout.norm_f.1] {
            assert!(w.get(bias).iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn tails_are_normal() {
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        let mut x = vec![0.0; 100_001];
        normal(&mut rng, 1.0, &mut x);
        // P(|x| > 2) = 0.0455: 4550 of 100,001, standard deviation 66.
        let beyond = x.iter().filter(|x| x.abs() > 2.0).count() as f64;
        assert!((beyond - 4550.0).abs() < 330.0, "{beyond}");
    }

    #[test]
    fn the_seed_decides() {
        let hash = |seed| crate::model::checkpoint::tensors_sha256(&random(Preset::Tiny.config(), seed).unwrap());
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
        let w = random(Preset::Tiny.config(), 1).unwrap();
        assert_ne!(w.get(w.layout.blocks[0].qkv.0)[..8], w.get(w.layout.blocks[1].qkv.0)[..8]);
    }
}
