//! The named parameters of a decoder, in checkpoint order.
//!
//! A parameter has one [`ParamId`] however often the decoder uses it: with tied weights the output head *is* the token
//! embedding. Everything that touches parameters (sinks, groups, optimizers, checkpoints) speaks of ids.

use super::config::{Config, Mlp, Qkv as Storage};
use crate::ops::{GateUp, Parts, Qkv};
use std::collections::HashMap;

/// Index of a parameter in its [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// Where in the decoder a parameter is used first on the way back from the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Token or position embedding: the gradient needs the whole way down.
    Embedding,
    /// Block of this index.
    Block(usize),
    /// Final norm or separate output head.
    Top,
}

/// A part of a decoder that has parameters: a weight, and perhaps a bias. [`Config::shapes`] says which ones a decoder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// Token embedding `[V, C]`.
    Tokens,
    /// Learned positions `[positions, C]`.
    Positions,
    /// Norm of the embedding.
    EmbeddingNorm,
    /// Norm before attention.
    Norm1,
    /// Queries, keys and values in one product.
    Qkv,
    /// Queries alone.
    Query,
    /// Keys alone.
    Key,
    /// Values alone.
    Value,
    /// Norm of every head of queries.
    QueryNorm,
    /// Norm of every head of keys.
    KeyNorm,
    /// From the heads back to the residual stream.
    AttentionOut,
    /// Norm before the MLP.
    Norm2,
    /// Into the hidden width; gate and up side by side where they are one tensor.
    MlpIn,
    /// Into the hidden width, through the nonlinearity.
    Gate,
    /// Into the hidden width, to be multiplied by the gate.
    Up,
    /// From the hidden width back to the residual stream.
    MlpOut,
    /// Norm before the output head.
    FinalNorm,
    /// Output head `[V, C]`.
    Head,
}

impl Module {
    /// Those that a decoder has once.
    pub const ONCE: [Self; 5] = [Self::Tokens, Self::Positions, Self::EmbeddingNorm, Self::FinalNorm, Self::Head];
    /// Those that every block has.
    pub const BLOCK: [Self; 13] = [
        Self::Norm1,
        Self::Qkv,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::QueryNorm,
        Self::KeyNorm,
        Self::AttentionOut,
        Self::Norm2,
        Self::MlpIn,
        Self::Gate,
        Self::Up,
        Self::MlpOut,
    ];
}

/// Name, shape and place of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// The checkpoint's tensor name, without the prefix that a family puts before the names of its base model.
    pub name: String,
    /// `[in, out]` or `[out, in]` for linear layers, `[V, C]` for embeddings, `[C]` for vectors.
    pub shape: Vec<usize>,
    /// Where it is used.
    pub place: Place,
    /// What it is part of.
    pub module: Module,
    /// Whether it is its module's bias.
    pub bias: bool,
    /// Which matrix of its module's adapter it is, where it is one.
    pub adapter: Option<Side>,
}

/// The two matrices of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `[r, in]`.
    A,
    /// `[out, r]`.
    B,
}

impl ParamSpec {
    /// Number of scalars.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the parameter holds no scalar at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape as a matrix: vectors are one row.
    pub fn matrix(&self) -> (usize, usize) {
        match self.shape[..] {
            [rows, cols] => (rows, cols),
            _ => (1, self.len()),
        }
    }
}

/// A weight, and its bias if it has one: a linear layer, or a norm's gain and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The weight, or the gain.
    pub weight: ParamId,
    /// None where the layer adds none.
    pub bias: Option<ParamId>,
    /// A and B of an adapter beside the weight.
    pub adapter: Option<[ParamId; 2]>,
}

impl Pair {
    /// All there are.
    pub fn ids(self) -> impl Iterator<Item = ParamId> {
        std::iter::once(self.weight).chain(self.bias).chain(self.adapter.into_iter().flatten())
    }

    /// Those whose gradient has the layer's input as a factor.
    pub fn products(self) -> impl Iterator<Item = ParamId> {
        std::iter::once(self.weight).chain(self.adapter.into_iter().flatten())
    }
}

/// The parameters of one block.
#[derive(Clone, Copy, Debug)]
pub struct BlockIds {
    /// Norm before attention.
    pub norm_1: Pair,
    /// Queries, keys and values: one layer, or one each.
    pub qkv: Qkv<Pair>,
    /// The gains of the norms of queries and keys, where there are such norms.
    pub head_norms: Option<[ParamId; 2]>,
    /// From the heads back to the residual stream.
    pub attn_out: Pair,
    /// Norm before the MLP.
    pub norm_2: Pair,
    /// Into the hidden width: one layer, or gate and up.
    pub mlp_in: GateUp<Pair>,
    /// From the hidden width back to the residual stream.
    pub mlp_out: Pair,
}

/// All parameters of a decoder.
#[derive(Clone, Debug)]
pub struct Layout {
    specs: Vec<ParamSpec>,
    /// Token embedding `[V, C]`.
    pub tokens: ParamId,
    /// Position embedding `[positions, C]`, where positions are learned.
    pub positions: Option<ParamId>,
    /// Norm of the embedding, where there is one.
    pub embedding_norm: Option<Pair>,
    /// One entry a block.
    pub blocks: Vec<BlockIds>,
    /// Norm before the output head.
    pub norm_f: Pair,
    /// Output head `[V, C]`; the same id as `tokens` when tied.
    pub head: ParamId,
}

impl Layout {
    /// The parameters of `config` in the order in which its family has them.
    pub fn new(config: &Config) -> Self {
        let names = config.family.names();
        let mut specs = Vec::new();
        let mut found: HashMap<(Module, Place), Pair> = HashMap::new();
        let mut adapted = Vec::new();
        let mut add = |module: Module, name: String, place: Place| {
            let Some((weight, bias)) = config.shapes(module) else { return };
            let mut push = |part: &str, shape: Vec<usize>, bias: bool| {
                let adapter = None;
                specs.push(ParamSpec { name: format!("{name}.{part}"), shape, place, module, bias, adapter });
                ParamId(specs.len() - 1)
            };
            let weight = push("weight", weight, false);
            let bias = bias.map(|n| push("bias", vec![n], true));
            found.insert((module, place), Pair { weight, bias, adapter: None });
            if config.adapter.as_ref().is_some_and(|a| a.is_on(config, module, &name)) {
                adapted.push((module, place, name));
            }
        };
        for &(module, name) in names.before {
            add(module, name.into(), Place::Embedding);
        }
        for l in 0..config.layers {
            for &(module, name) in names.block {
                add(module, format!("{}.{l}.{name}", names.blocks), Place::Block(l));
            }
        }
        add(Module::FinalNorm, names.norm.into(), Place::Top);
        add(Module::Head, names.head.into(), Place::Top);

        // After everything else, so that a decoder's own parameters keep their numbers.
        for (module, place, name) in adapted {
            let (inputs, outputs, _) = config.linear(module).expect("adapters are beside linear layers");
            let rank = config.adapter.as_ref().map_or(0, |a| a.rank as usize);
            let parts = [(Side::A, "lora_A", vec![rank, inputs]), (Side::B, "lora_B", vec![outputs, rank])];
            let ids = parts.map(|(side, part, shape)| {
                let name = format!("{name}.{part}.weight");
                specs.push(ParamSpec { name, shape, place, module, bias: false, adapter: Some(side) });
                ParamId(specs.len() - 1)
            });
            found.get_mut(&(module, place)).expect("it was just added").adapter = Some(ids);
        }

        let find = |module: Module, place: Place| found.get(&(module, place)).copied();
        let must =
            |module: Module, place: Place| find(module, place).expect("a family names every module of its configs");
        let tokens = must(Module::Tokens, Place::Embedding).weight;
        let blocks = (0..config.layers)
            .map(|l| {
                let place = Place::Block(l);
                BlockIds {
                    norm_1: must(Module::Norm1, place),
                    qkv: match config.qkv {
                        Storage::Split => {
                            Parts::Split([Module::Query, Module::Key, Module::Value].map(|m| must(m, place)))
                        }
                        Storage::Fused | Storage::PerHead => Parts::Fused(must(Module::Qkv, place)),
                    },
                    head_norms: config
                        .head_norm
                        .then(|| [Module::QueryNorm, Module::KeyNorm].map(|m| must(m, place).weight)),
                    attn_out: must(Module::AttentionOut, place),
                    norm_2: must(Module::Norm2, place),
                    mlp_in: match config.mlp {
                        Mlp::Gated { fused: false, .. } => {
                            Parts::Split([Module::Gate, Module::Up].map(|m| must(m, place)))
                        }
                        Mlp::Gated { fused: true, .. } | Mlp::Plain(_) => Parts::Fused(must(Module::MlpIn, place)),
                    },
                    mlp_out: must(Module::MlpOut, place),
                }
            })
            .collect();
        Self {
            tokens,
            positions: find(Module::Positions, Place::Embedding).map(|pair| pair.weight),
            embedding_norm: find(Module::EmbeddingNorm, Place::Embedding),
            blocks,
            norm_f: must(Module::FinalNorm, Place::Top),
            head: find(Module::Head, Place::Top).map_or(tokens, |pair| pair.weight),
            specs,
        }
    }

    /// Number of parameters (tensors).
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// Never: every decoder has embeddings.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Number of scalars over all parameters.
    pub fn scalars(&self) -> usize {
        self.specs.iter().map(ParamSpec::len).sum()
    }

    /// Number of scalars of `ids`.
    pub fn scalars_of(&self, ids: &[ParamId]) -> usize {
        ids.iter().map(|&id| self.spec(id).len()).sum()
    }

    /// Name, shape and place of `id`.
    pub fn spec(&self, id: ParamId) -> &ParamSpec {
        &self.specs[id.0]
    }

    /// The linear layers of all blocks.
    pub fn linears(&self) -> impl Iterator<Item = Pair> {
        self.blocks.iter().flat_map(|ids| {
            ids.qkv.iter().copied().chain([ids.attn_out]).chain(ids.mlp_in.iter().copied()).chain([ids.mlp_out])
        })
    }

    /// All ids in checkpoint order.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.specs.len()).map(ParamId)
    }

    /// All specs in checkpoint order.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }
}
