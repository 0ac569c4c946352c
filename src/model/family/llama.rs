//! Llama 1 to 3, and what has its shape (TinyLlama, SmolLM): RMSNorm, rotated queries and keys that share key and value heads, a
//! gated MLP, `[out, in]` weights, no biases unless the file asks for them. [`read`], [`write`] and [`NAMES`] serve its relatives.

use super::keys::{Keys, MAX_LAYERS, MAX_SIZE};
use super::{Family, FamilyRef, Names, gpt2, rope};
use crate::error::Result;
use crate::model::config::{Activation, Biases, Config, Mlp, Norm, Order, Position, Qkv, Rope, Scaling};
use crate::model::layout::Module;
use serde_json::{Map, Value, json};

/// Llama as a [`Family`].
pub struct Llama;

impl Family for Llama {
    fn called(&self) -> [&'static str; 2] {
        ["llama", "Llama"]
    }

    fn read(&self, keys: &Keys, notes: &mut Vec<String>) -> Result<Config> {
        let attention = keys.flag("attention_bias", false)?;
        let mlp = keys.flag("mlp_bias", false)?;
        keys.note_rounding("pretraining_tp", notes)?;
        let biases = Biases { qkv: attention, attn_out: attention, mlp_in: mlp, mlp_out: mlp };
        Ok(Config { biases, ..read(FamilyRef(&Llama), keys, notes, &DEFAULTS)? })
    }

    fn write(&self, config: &Config) -> Map<String, Value> {
        let mut object = write(config);
        object.insert("attention_bias".into(), json!(config.biases.qkv));
        object.insert("mlp_bias".into(), json!(config.biases.mlp_in));
        object
    }
}

/// What a missing key means.
pub struct Defaults {
    pub vocab: u64,
    pub width: u64,
    pub inner: u64,
    pub layers: u64,
    pub heads: u64,
    /// None: as many as heads.
    pub kv_heads: Option<u64>,
    pub positions: u64,
    pub epsilon: f64,
    pub eos: Option<u64>,
}

/// Llama's.
pub const DEFAULTS: Defaults = Defaults {
    vocab: 32000,
    width: 4096,
    inner: 11008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    positions: 2048,
    epsilon: 1e-6,
    eos: Some(2),
};

/// Llama's names, in transformers' order of parameters.
pub const NAMES: Names = Names {
    prefix: "model.",
    before: &[(Module::Tokens, "embed_tokens")],
    blocks: "layers",
    block: &[
        (Module::Query, "self_attn.q_proj"),
        (Module::Key, "self_attn.k_proj"),
        (Module::Value, "self_attn.v_proj"),
        (Module::AttentionOut, "self_attn.o_proj"),
        (Module::Gate, "mlp.gate_proj"),
        (Module::Up, "mlp.up_proj"),
        (Module::MlpOut, "mlp.down_proj"),
        (Module::Norm1, "input_layernorm"),
        (Module::Norm2, "post_attention_layernorm"),
    ],
    norm: "norm",
    head: "lm_head",
};

/// Llama's shape without biases, and the keys that its relatives share.
pub fn read(family: FamilyRef, keys: &Keys, notes: &mut Vec<String>, defaults: &Defaults) -> Result<Config> {
    let width = keys.size(&["hidden_size"], defaults.width, MAX_SIZE)?;
    let heads = keys.size(&["num_attention_heads"], defaults.heads, MAX_SIZE)?;
    let layers = keys.size(&["num_hidden_layers"], defaults.layers, MAX_LAYERS)?;
    let vocab = keys.size(&["vocab_size"], defaults.vocab, MAX_SIZE)?;
    // Null means as many as heads, and a missing key what the family's default says.
    let asked = keys.object.contains_key("num_key_value_heads");
    let kv_heads = if asked { None } else { defaults.kv_heads }.unwrap_or(heads as u64);
    let kv_heads = keys.size(&["num_key_value_heads"], kv_heads, MAX_SIZE)?;
    let head_width = keys.head_width(width, heads)?;
    let positions = keys.size(&["max_position_embeddings"], defaults.positions, MAX_SIZE)?;
    keys.note_dropout(&["attention_dropout", "resid_pdrop", "embd_pdrop"], notes)?;
    let mut config = shape(family, [vocab, width, layers, heads, kv_heads]);
    config.head_width = head_width;
    config.positions = positions;
    config.inner = keys.size(&["intermediate_size"], defaults.inner, MAX_SIZE)?;
    config.norm_epsilon = keys.positive("rms_norm_eps", defaults.epsilon)?;
    config.mlp = Mlp::Gated { activation: keys.activation("hidden_act", "silu")?, fused: false };
    config.position = Position::Rope(rope::read(keys, head_width, positions, 10_000.0)?);
    config.tied = keys.flag("tie_word_embeddings", false)?;
    config.init_std = keys.init_std()?;
    config.eos = keys.eos(defaults.eos, vocab, notes)?;
    Ok(config)
}

/// Vocabulary, width, blocks, heads, and key and value heads; all else as Llama has it.
pub fn shape(family: FamilyRef, [vocab, width, layers, heads, kv_heads]: [usize; 5]) -> Config {
    let head_width = width / heads.max(1);
    Config {
        family,
        vocab,
        positions: 2048,
        kv_heads,
        norm: Norm::Rms,
        position: Position::Rope(Rope { theta: 10_000.0, width: head_width, scaling: Scaling::None }),
        qkv: Qkv::Split,
        mlp: Mlp::Gated { activation: Activation::Silu, fused: false },
        biases: Biases::default(),
        order: Order::OutIn,
        tied: false,
        init_narrow: false,
        eos: Some(2),
        ..gpt2::shape(layers, heads, width)
    }
}

/// The keys that Llama's relatives share.
pub fn write(config: &Config) -> Map<String, Value> {
    let activation = match config.mlp.activation() {
        Activation::Silu => "silu",
        Activation::GeluErf => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
    };
    let mut object = super::object(json!({
        "attention_dropout": 0.0,
        "eos_token_id": config.eos,
        "head_dim": config.head_width,
        "hidden_act": activation,
        "hidden_size": config.width,
        "initializer_range": config.init_std,
        "intermediate_size": config.inner,
        "max_position_embeddings": config.positions,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        "use_cache": true,
        "vocab_size": config.vocab,
    }));
    if let Position::Rope(rope) = &config.position {
        rope::write(rope, &mut object);
    }
    object
}
