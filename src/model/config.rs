//! What a decoder is, by value: read from `config.json` by a [family](super::family), used by everything else.
//!
//! Nothing here knows a family's name. A block is what its fields say, and a parameter that they do not ask for does not exist.

use super::adapter::Adapter;
use super::family::FamilyRef;
use super::layout::Module;
use crate::ops::Heads;

pub use crate::ops::rope::Scaling;
pub use crate::ops::{Activation, Order};

/// The sizes and choices that define a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Whose names and files its checkpoints have.
    pub family: FamilyRef,
    /// Vocabulary size V.
    pub vocab: usize,
    /// The longest context: what a learned position embedding covers, or what the model was made for.
    pub positions: usize,
    /// Width C of the residual stream.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads H.
    pub heads: usize,
    /// Key and value heads; divides `heads`, and each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width D of one head; usually C / H.
    pub head_width: usize,
    /// Width of the hidden layer of the MLP.
    pub inner: usize,
    /// How a row is normalised.
    pub norm: Norm,
    /// Added to the variance, or the mean square, by norms.
    pub norm_epsilon: f64,
    /// How a token knows where it is.
    pub position: Position,
    /// How queries, keys and values are stored.
    pub qkv: Qkv,
    /// What lies between the layers of the MLP.
    pub mlp: Mlp,
    /// Which linear layers have a bias.
    pub biases: Biases,
    /// How linear weights lie, in the file and in memory.
    pub order: Order,
    /// Normalise the embedding before the first block.
    pub embedding_norm: bool,
    /// Divide every head of queries and keys by the root of its mean square, with a gain that the heads share. Where it is so, they are
    /// stored apart.
    pub head_norm: bool,
    /// Whether the output head is the token embedding.
    pub tied: bool,
    /// Divide attention scores by sqrt(head width).
    pub scale_by_width: bool,
    /// Divide attention scores by (layer index + 1).
    pub scale_by_layer: bool,
    /// How far back attention looks, where not to the beginning.
    pub window: Option<Window>,
    /// Standard deviation of fresh weights.
    pub init_std: f64,
    /// Fresh projections to the residual stream are narrower by 1/sqrt(2 L).
    pub init_narrow: bool,
    /// Ends a text, where the checkpoint names one.
    pub eos: Option<u32>,
    /// Low-rank matrices beside some of the linear layers.
    pub adapter: Option<Adapter>,
}

/// The kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Mean taken out, gain and bias.
    Layer,
    /// Divided by the root of the mean square, gain alone.
    Rms,
}

/// How a token knows where it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Position {
    /// A learned row a position is added to the embedding.
    Learned,
    /// Queries and keys are rotated by their position.
    Rope(Rope),
    /// Scores fall with the distance, by a slope a head.
    Alibi,
}

/// A rotation of queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the wavelengths.
    pub theta: f64,
    /// Columns of each head that are rotated, the first ones; even.
    pub width: usize,
    /// What is done to the wavelengths for contexts longer than those first trained on.
    pub scaling: Scaling,
}

/// How queries, keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// One tensor: all queries, all keys, all values.
    Fused,
    /// One tensor: a head's queries, keys and values, then the next head's. In memory it is as [`Qkv::Fused`].
    PerHead,
    /// A tensor each.
    Split,
}

/// The MLP of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// `out(act(in(x)))`.
    Plain(Activation),
    /// `out(act(gate(x)) ∘ up(x))`.
    Gated {
        /// The gate's nonlinearity.
        activation: Activation,
        /// Gate and up are one tensor, in this order.
        fused: bool,
    },
}

impl Mlp {
    /// The nonlinearity.
    pub fn activation(self) -> Activation {
        match self {
            Self::Plain(activation) | Self::Gated { activation, .. } => activation,
        }
    }
}

/// Which linear layers of a block have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The projection after attention.
    pub attn_out: bool,
    /// The MLP's layers into its hidden width.
    pub mlp_in: bool,
    /// The MLP's layer out of it.
    pub mlp_out: bool,
}

impl Biases {
    /// A bias everywhere.
    pub const ALL: Self = Self { qkv: true, attn_out: true, mlp_in: true, mlp_out: true };
}

/// Attention that looks a part of the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Tokens seen, the own one included.
    pub size: usize,
    /// The first block that has it; those below see everything.
    pub first_layer: usize,
}

impl Config {
    /// Refuse sizes that cannot be true together; the answer says which.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [
            ("the vocabulary", self.vocab),
            ("the width", self.width),
            ("the count of heads", self.heads),
            ("the count of key and value heads", self.kv_heads),
            ("the width of a head", self.head_width),
            ("the hidden width", self.inner),
            ("the count of positions", self.positions),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(format!("{name} is 0: no such model can be computed"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv) = (self.heads, self.kv_heads);
            return Err(format!("{heads} heads cannot share {kv} keys and values: one is no multiple of the other"));
        }
        match &self.position {
            Position::Rope(rope) if rope.width == 0 || rope.width % 2 != 0 || rope.width > self.head_width => {
                let (rotated, width) = (rope.width, self.head_width);
                Err(format!("{rotated} columns of a head of {width} cannot be rotated: an even count inside it can"))
            }
            _ => Ok(()),
        }
    }

    /// What attention scores of block `layer` are multiplied by.
    pub fn attention_scale(&self, layer: usize) -> f64 {
        let by_width = if self.scale_by_width { 1.0 / (self.head_width as f64).sqrt() } else { 1.0 };
        let by_layer = if self.scale_by_layer { 1.0 / (layer + 1) as f64 } else { 1.0 };
        by_width * by_layer
    }

    /// The attention of block `layer`.
    pub fn attention(&self, layer: usize) -> Heads {
        Heads {
            heads: self.heads,
            kv_heads: self.kv_heads,
            width: self.head_width,
            scale: self.attention_scale(layer),
            window: self.window.filter(|window| layer >= window.first_layer).map(|window| window.size),
            alibi: self.position == Position::Alibi,
        }
    }

    /// Columns of all queries, and of attention's output.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Columns of all keys, and of all values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_width
    }

    /// Inputs and outputs of a linear layer of a block, and whether it has a bias; none where blocks have no such layer.
    pub fn linear(&self, module: Module) -> Option<(usize, usize, bool)> {
        let (c, i, q, kv, has) = (self.width, self.inner, self.query_width(), self.kv_width(), self.biases);
        let split = self.qkv == Qkv::Split;
        Some(match (module, self.mlp) {
            (Module::Qkv, _) if !split => (c, q + 2 * kv, has.qkv),
            (Module::Query, _) if split => (c, q, has.qkv),
            (Module::Key | Module::Value, _) if split => (c, kv, has.qkv),
            (Module::AttentionOut, _) => (q, c, has.attn_out),
            (Module::MlpIn, Mlp::Plain(_)) => (c, i, has.mlp_in),
            (Module::MlpIn, Mlp::Gated { fused: true, .. }) => (c, 2 * i, has.mlp_in),
            (Module::Gate | Module::Up, Mlp::Gated { fused: false, .. }) => (c, i, has.mlp_in),
            (Module::MlpOut, _) => (i, c, has.mlp_out),
            _ => return None,
        })
    }

    /// The shape of a module's weight and the length of its bias, where the decoder has such a module.
    pub fn shapes(&self, module: Module) -> Option<(Vec<usize>, Option<usize>)> {
        if let Some((inputs, outputs, bias)) = self.linear(module) {
            let weight = match self.order {
                Order::InOut => vec![inputs, outputs],
                Order::OutIn => vec![outputs, inputs],
            };
            return Some((weight, bias.then_some(outputs)));
        }
        let c = self.width;
        let norm = || (vec![c], (self.norm == Norm::Layer).then_some(c));
        match module {
            Module::Tokens => Some((vec![self.vocab, c], None)),
            Module::Positions => (self.position == Position::Learned).then(|| (vec![self.positions, c], None)),
            Module::EmbeddingNorm => self.embedding_norm.then(norm),
            Module::QueryNorm | Module::KeyNorm => self.head_norm.then(|| (vec![self.head_width], None)),
            Module::Norm1 | Module::Norm2 | Module::FinalNorm => Some(norm()),
            Module::Head => (!self.tied).then(|| (vec![self.vocab, c], None)),
            _ => None,
        }
    }

    /// Number of scalars, without building a layout: sizes that no memory holds do not overflow.
    pub fn scalars(&self) -> u128 {
        let count = |module: &Module| -> u128 {
            let Some((weight, bias)) = self.shapes(*module) else { return 0 };
            weight.iter().map(|&n| n as u128).product::<u128>() + bias.unwrap_or(0) as u128
        };
        let [once, block] = [Module::ONCE.iter(), Module::BLOCK.iter()].map(|all| all.map(count).sum::<u128>());
        once + self.layers as u128 * block
    }
}
