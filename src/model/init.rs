//! Fresh weights as transformers draws them: N(0, s^2), gains 1, biases 0; GPT-2's residual projections narrower by 1/sqrt(2 L).

use super::config::Config;
use super::layout::{Layout, Module};
use super::weights::Weights;
use crate::error::{Error, Result};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use std::f64::consts::TAU;

pub use super::family::Preset;

/// Fresh weights of `config`; the same `seed` gives the same bits on every machine and thread count.
///
/// Matrices and embeddings: N(0, s^2), s = `init_std`; where the config has it so, the projections that add to the residual stream
/// 2 L times: s / sqrt(2 L); gains 1, biases 0. Parameter i draws from stream i of ChaCha20 keyed by `seed`.
pub fn random(config: Config, seed: u64) -> Result<Weights> {
    let layout = Layout::new(&config);
    let tensors = (0..layout.len()).map(|i| draw(&config, &layout, i, seed)).collect::<Result<_>>()?;
    Ok(Weights { config, layout, tensors })
}

/// Parameter `i` of [`random`], alone: for models that need not be in memory whole.
pub fn draw(config: &Config, layout: &Layout, i: usize, seed: u64) -> Result<Vec<f32>> {
    let spec = &layout.specs()[i];
    let mut tensor = Vec::new();
    tensor.try_reserve_exact(spec.len()).map_err(|_| {
        Error::usage(format!("{} {:?} does not fit into memory: choose smaller sizes", spec.name, spec.shape))
    })?;
    tensor.resize(spec.len(), 0.0);
    if spec.shape.len() == 2 {
        let residual = matches!(spec.module, Module::AttentionOut | Module::MlpOut);
        let narrow = config.init_std / ((2 * config.layers) as f64).sqrt();
        let std = if residual && config.init_narrow { narrow } else { config.init_std };
        // A pair of numbers takes four words of the stream, so that any piece knows where its own begin.
        const PIECE: usize = 1 << 16;
        tensor.par_chunks_mut(PIECE).enumerate().for_each(|(piece, out)| {
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            rng.set_stream(i as u64);
            rng.set_word_pos((2 * piece * PIECE) as u128);
            normal(&mut rng, std, out);
        });
    } else if !spec.bias {
        tensor.fill(1.0);
    }
    Ok(tensor)
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
    use crate::model::layout::Pair;
    use crate::ops::Parts;

    fn fused<const N: usize>(pairs: Parts<Pair, N>) -> Pair {
        *pairs.iter().next().unwrap()
    }

    fn moments(x: &[f32]) -> (f64, f64) {
        let n = x.len() as f64;
        let mean = x.iter().map(|&x| x as f64).sum::<f64>() / n;
        let var = x.iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>() / n;
        (mean, var.sqrt())
    }

    #[test]
    fn widths_are_gpt2s() {
        let w = random(Preset::Tiny.config(), 1).unwrap();
        let ids = &w.layout.blocks[1];
        // 4096 to 16384 scalars: the standard deviation is known to about 1.1 %.
        for (id, std) in [
            (w.layout.tokens, 0.02),
            (fused(ids.qkv).weight, 0.02),
            (fused(ids.mlp_in).weight, 0.02),
            (ids.attn_out.weight, 0.01),
            (ids.mlp_out.weight, 0.01),
        ] {
            let (mean, found) = moments(w.get(id));
            assert!((found / std - 1.0).abs() < 0.04 && mean.abs() < 0.05 * std, "{id:?}: {mean} {found}");
        }
        assert!(
            w.get(ids.norm_1.weight).iter().all(|&x| x == 1.0)
                && w.get(w.layout.norm_f.weight).iter().all(|&x| x == 1.0)
        );
        for pair in [ids.norm_1, fused(ids.qkv), ids.attn_out, fused(ids.mlp_in), ids.mlp_out, w.layout.norm_f] {
            assert!(w.get(pair.bias.unwrap()).iter().all(|&x| x == 0.0));
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

    /// Pieces are drawn side by side, and are those of one stream from its beginning.
    #[test]
    fn a_tensor_is_one_stream() {
        let config = Config { vocab: 2503, ..Preset::Tiny.config() };
        let layout = Layout::new(&config);
        let spec = layout.spec(layout.tokens);
        assert!(spec.len() > 2 << 16, "{}", spec.len());
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        rng.set_stream(layout.tokens.0 as u64);
        let mut want = vec![0.0; spec.len()];
        normal(&mut rng, config.init_std, &mut want);
        assert_eq!(draw(&config, &layout, layout.tokens.0, 3).unwrap(), want);
    }

    #[test]
    fn the_seed_decides() {
        let hash = |seed| crate::model::checkpoint::tensors_sha256(&random(Preset::Tiny.config(), seed).unwrap());
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
        let w = random(Preset::Tiny.config(), 1).unwrap();
        assert_ne!(w.get(fused(w.layout.blocks[0].qkv).weight)[..8], w.get(fused(w.layout.blocks[1].qkv).weight)[..8]);
    }
}
