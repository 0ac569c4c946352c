//! What shape the decoder has: read from `config.json` by a [family](super::family), used by everything else.

use crate::ops::Heads;

pub use crate::ops::Activation;

/// The sizes and choices that define a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Vocabulary size V.
    pub vocab: usize,
    /// The longest context the position embedding covers.
    pub positions: usize,
    /// Width C of the residual stream.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Attention heads H; divides `width`.
    pub heads: usize,
    /// Width of the hidden layer of the MLP, usually 4 C.
    pub inner: usize,
    /// Added to the variance by layer norm.
    pub norm_epsilon: f64,
    /// Nonlinearity of the MLP.
    pub activation: Activation,
    /// Whether the output head is the token embedding.
    pub tied: bool,
    /// Divide attention scores by sqrt(head width) (`scale_attn_weights`).
    pub scale_by_width: bool,
    /// Divide attention scores by (layer index + 1) (`scale_attn_by_inverse_layer_idx`).
    pub scale_by_layer: bool,
    /// Standard deviation of fresh weights (`initializer_range`).
    pub init_std: f64,
    /// Ends a text, where the checkpoint names one.
    pub eos: Option<u32>,
}

impl Config {
    /// Width of one attention head.
    pub fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// What attention scores of block `layer` are multiplied by.
    pub fn attention_scale(&self, layer: usize) -> f64 {
        let by_width = if self.scale_by_width { 1.0 / (self.head_width() as f64).sqrt() } else { 1.0 };
        let by_layer = if self.scale_by_layer { 1.0 / (layer + 1) as f64 } else { 1.0 };
        by_width * by_layer
    }

    /// The attention of block `layer`.
    pub fn attention(&self, layer: usize) -> Heads {
        Heads::plain(self.heads, self.head_width(), self.attention_scale(layer))
    }
}
