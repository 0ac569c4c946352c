//! Low-rank adapters (LoRA): beside a linear layer's weight W, which stays as it is, two thin matrices are learned.
//!
//! ```text
//! y = x W + bias + s (x Aᵀ) Bᵀ        A [r, in], B [out, r], s = alpha / r
//! ```
//! A begins uniform in (-1/sqrt(in), 1/sqrt(in)), B at zero, as in PEFT: a fresh adapter changes nothing. Its parameters come after those of the
//! decoder, whose numbers stay as they were.

use super::config::{Config, Order, Qkv};
use super::layout::{Layout, Module, Side};
use super::weights::Weights;
use crate::error::{Error, Result};
use crate::kernel::{Scalars, Stored, matmul};
use crate::rng::{Domain, PublicStream};
use ndarray::{Array2, ArrayView2};
use serde::{Deserialize, Serialize};

/// The shape of an adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// r: rows of A, columns of B.
    pub rank: u32,
    /// The adapter counts alpha / r times.
    pub alpha: f64,
    /// The linear layers of every block that have one: the ends of their names, by whole words. None: the layer of queries, keys and values, or, where
    /// they are apart, those of queries and values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

impl Default for Adapter {
    /// PEFT's.
    fn default() -> Self {
        Self { rank: 8, alpha: 8.0, targets: Vec::new() }
    }
}

/// The most a rank may be.
const MOST_RANK: u32 = 1 << 16;

impl Adapter {
    /// s = alpha / r.
    pub fn scale(&self) -> f32 {
        (self.alpha / f64::from(self.rank)) as f32
    }

    /// Whether it makes sense.
    pub fn check(&self) -> Result<()> {
        if !(1..=MOST_RANK).contains(&self.rank) {
            return Err(Error::usage(format!("an adapter of rank {}: expected 1 to {MOST_RANK}", self.rank)));
        }
        if !(self.alpha > 0.0 && self.alpha.is_finite() && self.scale() > 0.0 && self.scale().is_finite()) {
            return Err(Error::usage(format!("an adapter with alpha {}: expected a number above 0", self.alpha)));
        }
        // Transcripts and configs repeat them.
        let plain = |t: &String| {
            !t.is_empty()
                && t.len() <= 200
                && t.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        };
        match self.targets.iter().find(|t| !plain(t)) {
            Some(t) => Err(Error::usage(format!("an adapter's target {t:?} is no name of a layer"))),
            None => Ok(()),
        }
    }

    /// Whether the linear layer `name` of a decoder of `config` has one.
    pub(super) fn is_on(&self, config: &Config, module: Module, name: &str) -> bool {
        if config.linear(module).is_none() {
            return false;
        }
        if self.targets.is_empty() {
            return match config.qkv {
                Qkv::Split => matches!(module, Module::Query | Module::Value),
                Qkv::Fused | Qkv::PerHead => module == Module::Qkv,
            };
        }
        let ends =
            |t: &String| name.strip_suffix(t.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        self.targets.iter().any(ends)
    }

    /// The targets by name on a decoder of `config`, those that are meant by none included.
    pub fn named_targets(&self, config: &Config) -> Vec<String> {
        if !self.targets.is_empty() {
            return self.targets.clone();
        }
        let names = config.family.names().block.iter().filter(|(module, name)| self.is_on(config, *module, name));
        names.map(|(_, name)| name.rsplit('.').next().unwrap_or(name).to_owned()).collect()
    }

    /// Whether `other` is this adapter, named the same on a decoder of `config`: in any order, and with the same alpha to the bit.
    pub fn is_same(&self, other: &Self, config: &Config) -> bool {
        let names = |of: &Self| {
            let mut names = of.named_targets(config);
            names.sort();
            names
        };
        (self.rank, self.alpha.to_bits(), names(self)) == (other.rank, other.alpha.to_bits(), names(other))
    }

    /// The config of a decoder of `config` that has this adapter. Refuses one that has an adapter already, and a target that names no layer.
    pub fn on(&self, config: &Config) -> Result<Config> {
        self.check()?;
        if config.adapter.is_some() {
            return Err(Error::usage("the model has an adapter already: merge it first, or go on with it"));
        }
        let layers: Vec<(Module, &str)> = config
            .family
            .names()
            .block
            .iter()
            .copied()
            .filter(|(module, _)| config.linear(*module).is_some())
            .collect();
        for target in &self.targets {
            let alone = Self { targets: vec![target.clone()], ..self.clone() };
            if !(0..config.layers).any(|l| {
                layers
                    .iter()
                    .any(|(m, name)| alone.is_on(config, *m, &format!("{}.{l}.{name}", config.family.names().blocks)))
            }) {
                let names: Vec<&str> = layers.iter().map(|(_, name)| *name).collect();
                return Err(Error::usage(format!(
                    "an adapter's target {target} names no layer of the model: it has {}",
                    names.join(", ")
                )));
            }
        }
        Ok(Config { adapter: Some(self.clone()), ..config.clone() })
    }

    /// `weights` with a fresh adapter of this shape, drawn from the public `seed`.
    pub fn attach<T: Scalars>(&self, weights: Weights<T>, seed: u64) -> Result<Weights<T>> {
        let Weights { config, layout: bare, mut tensors } = weights;
        let config = self.on(&config)?;
        let layout = Layout::new(&config);
        for (i, spec) in layout.specs().iter().enumerate().skip(bare.len()) {
            let mut tensor = vec![0.0; spec.len()];
            if spec.adapter == Some(Side::A) {
                let bound = 1.0 / (spec.shape[1] as f64).sqrt();
                // A word a number: the middle of one of 2^32 equal parts of the interval.
                let mut words = vec![0; spec.len()];
                PublicStream::new(seed, Domain::Adapter, 0, i as u32).words(0, &mut words);
                let uniform = |word: u32| (2.0 * (f64::from(word) + 0.5) / 4_294_967_296.0 - 1.0) * bound;
                tensor.iter_mut().zip(words).for_each(|(x, word)| *x = uniform(word) as f32);
            }
            tensors.push(tensor.into());
        }
        Ok(Weights { config, layout, tensors })
    }
}

/// The decoder without an adapter that computes what `weights` do: `W + s (B A)ᵀ` where there was one, in f32, all else as it is.
pub fn merge(weights: Weights<Stored>) -> Result<Weights<Stored>> {
    let Weights { config, layout, mut tensors } = weights;
    let Some(adapter) = &config.adapter else {
        return Err(Error::usage("there is no adapter to merge"));
    };
    for pair in layout.linears() {
        let Some([a, b]) = pair.adapter else { continue };
        let matrix = |p: super::ParamId, data: Vec<f32>| {
            Array2::from_shape_vec(layout.spec(p).matrix(), data).expect("as many numbers as the shape says")
        };
        let take = |tensors: &mut Vec<Stored>, p: super::ParamId| {
            matrix(p, std::mem::replace(&mut tensors[p.0], Stored::F32(Vec::new())).into_f32())
        };
        let (a, b, mut w) = (take(&mut tensors, a), take(&mut tensors, b), take(&mut tensors, pair.weight));
        let product = |x: ArrayView2<f32>, y: ArrayView2<f32>| {
            let mut z = Array2::zeros((x.nrows(), y.ncols()));
            matmul(x, y, crate::kernel::Onto::Zero, z.view_mut());
            z
        };
        let delta = match config.order {
            Order::OutIn => product(b.view(), a.view()),
            Order::InOut => product(a.t(), b.t()),
        };
        w.zip_mut_with(&delta, |w, d| *w += adapter.scale() * d);
        tensors[pair.weight.0] = Stored::F32(w.into_raw_vec_and_offset().0);
    }
    let config = Config { adapter: None, ..config };
    let layout = Layout::new(&config);
    tensors.truncate(layout.len());
    Ok(Weights { config, layout, tensors })
}
