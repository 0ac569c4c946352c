//! How much memory each use of a decoder needs: an estimate by counting the large buffers.
//!
//! With P parameters, N = B T rows, width C, hidden width I, L blocks and vocabulary V, in f32:
//! weights P, as they are stored where nobody tunes them, two bytes each where those are bf16 or f16; gradients P; AdamW's moments 2 P; a block's cache for backward N (4 C + queries, keys, values and attention's output + the
//! hidden layer before and after its nonlinearity), which is 16 C a row for GPT-2;
//! logits V a row, the head being computed for as many samples at once as have 512 rows, or for one.

use super::config::{Config, Mlp};
use super::decoder::HEAD_ROWS;
use super::layout::{Layout, Module, ParamId, Place};

/// Bytes of one use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// What is done.
    pub kind: &'static str,
    /// The parameters.
    pub weights: u64,
    /// Their gradient.
    pub gradients: u64,
    /// AdamW's two moments, or one of momentum.
    pub optimizer: u64,
    /// What forward keeps for backward, factors held for clipping, and logits.
    pub activations: u64,
}

impl Need {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.activations
    }
}

/// What inference, FERRET, FERRET-k, non-private training and DPSGD of all parameters need on `batch` samples of `context` tokens.
pub fn estimate(config: &Config, batch: usize, context: usize) -> Vec<Need> {
    let layout = Layout::new(config);
    let tuned: Vec<_> = layout.ids().collect();
    Use { config, layout: &layout, tuned: &tuned, stored: 4, batch, context }.needs()
}

/// A use of a decoder.
pub struct Use<'a> {
    /// Its shape.
    pub config: &'a Config,
    /// Its parameters.
    pub layout: &'a Layout,
    /// Those that are tuned, in order: the others have no gradient and no moments, stay as they are stored, and nothing is kept that only they
    /// would need.
    pub tuned: &'a [ParamId],
    /// Bytes in which the checkpoint stores a scalar.
    pub stored: u64,
    /// Samples at once.
    pub batch: usize,
    /// Tokens of each.
    pub context: usize,
}

impl Use<'_> {
    /// What inference, FERRET, FERRET-k, non-private training and DPSGD need.
    pub fn needs(&self) -> Vec<Need> {
        let &Self { config, layout, tuned, stored, batch, context } = self;
        let bytes = |n: u128| u64::try_from(4 * n).unwrap_or(u64::MAX);
        let [b, t, v, c, i] = [batch, context, config.vocab, config.width, config.inner].map(|n| n as u128);
        let rows = b * t;
        let parameters = layout.scalars() as u128;
        let changed = layout.scalars_of(tuned) as u128;
        let wants = |p: ParamId| tuned.binary_search(&p).is_ok();
        let (q, qkv) = (config.query_width() as u128, (config.query_width() + 2 * config.kv_width()) as u128);
        let hidden = match config.mlp {
            Mlp::Plain(_) => i,
            Mlp::Gated { .. } => 2 * i,
        };
        let heads = if config.head_norm { qkv } else { 0 };
        let block = rows * (4 * c + q + qkv + heads + hidden + i);
        // From the lowest block that has a tuned parameter on: all but the inputs of frozen weights.
        let lowest = tuned.iter().map(|&p| layout.spec(p).place).min().unwrap_or(Place::Top);
        let reached = layout.blocks.iter().enumerate().filter(|(l, _)| lowest <= Place::Block(*l)).map(|(_, ids)| ids);
        let only = |wanted: bool, n: u128| if wanted { n } else { 0 };
        let kept: u128 = reached
            .map(|ids| {
                let unread = only(!ids.qkv.iter().any(|pair| pair.products().any(wants)), c)
                    + only(!ids.mlp_in.iter().any(|pair| pair.products().any(wants)), c)
                    + only(!ids.mlp_out.products().any(wants), i);
                block - rows * unread
            })
            .sum();
        // The factors dy of every tuned linear layer, and an input that several of them share once for each.
        let factors: u128 = tuned
            .iter()
            .map(|&p| layout.spec(p))
            .filter(|spec| !spec.bias && config.linear(spec.module).is_some() && matches!(spec.place, Place::Block(_)))
            .map(|spec| {
                // Both factors of an adapter's matrices are copies.
                if spec.adapter.is_some() {
                    return rows * spec.shape.iter().sum::<usize>() as u128;
                }
                let (_, outputs, _) = config.linear(spec.module).expect("asked for above");
                let again = [Module::Key, Module::Value, Module::Up].contains(&spec.module);
                rows * (outputs as u128 + only(again, c))
            })
            .sum();
        let at_once = (HEAD_ROWS as u128 / t.max(1) * t).max(t).min(rows);
        let head = at_once * v + rows * c;
        // Tuned weights have masters in f32, sooner or later; on the direct route those of groups that never fired stay as they are stored.
        let narrow = |n: u128| u64::try_from(u128::from(stored) * n).unwrap_or(u64::MAX);
        let row = |kind, gradients: u128, optimizer: u128, activations: u128| Need {
            kind,
            weights: match kind {
                "eval" => narrow(parameters),
                _ => narrow(parameters - changed).saturating_add(bytes(changed)),
            },
            gradients: bytes(gradients * changed),
            optimizer: bytes(optimizer * changed),
            activations: bytes(activations),
        };
        vec![
            row("eval", 0, 0, block + head),
            row("ferret, direct, engine jvp", 0, 0, 2 * (block + head)),
            row("ferret, direct", 0, 0, kept + block + head),
            row("ferret, adamw", 0, 2, kept + block + head),
            // Momentum is one number a weight; of a gradient nothing is kept.
            row("ferret-k, direct", 0, 1, kept + block + head),
            row("non-private, adamw", 1, 2, kept + block + head),
            // They are held until the clip factors are known.
            row("dpsgd, adamw", 1, 2, kept + factors + block + head + only(wants(layout.head), b * t * v)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::init::Preset;

    #[test]
    fn the_124m_shape_at_4_x_128() {
        let needs = estimate(&Preset::Gpt2.config(), 4, 128);
        let find = |kind: &str| needs.iter().find(|n| n.kind == kind).unwrap();
        let train = find("non-private, adamw");
        assert_eq!(train.weights, 4 * 124_439_808);
        assert_eq!((train.gradients, train.optimizer), (train.weights, 2 * train.weights));
        // 13 blocks of 512 x 16 x 768 floats, and 512 x 50257 + 512 x 768.
        assert_eq!(train.activations, 4 * (13 * 512 * 16 * 768 + 512 * 50257 + 512 * 768));
        // A long sample's logits exist whole; of short ones as many as fit.
        for (batch, context, at_once) in [(2, 1024, 1024), (9, 200, 400), (1, 8, 8)] {
            let eval = &estimate(&Preset::Gpt2.config(), batch, context)[0];
            let rows = (batch * context) as u64;
            assert_eq!(eval.activations, 4 * (rows * 17 * 768 + at_once * 50257));
        }
        assert_eq!(find("ferret, direct").gradients, 0);
        assert!(find("eval").total() < find("ferret, direct").total());
    }
}
