//! Phi-3: Llama's arithmetic with queries, keys and values in one tensor, and gate and up in another.

use super::keys::{Keys, MAX_SIZE};
use super::llama::{self, Defaults};
use super::{Family, FamilyRef, Names};
use crate::error::Result;
use crate::model::config::{Config, Mlp, Position, Qkv, Window};
use crate::model::layout::Module;
use serde_json::{Map, Value, json};

/// Phi-3 as a [`Family`].
pub struct Phi3;

const DEFAULTS: Defaults = Defaults {
    vocab: 32064,
    width: 3072,
    inner: 8192,
    positions: 4096,
    epsilon: 1e-5,
    eos: Some(32000),
    ..llama::DEFAULTS
};

impl Family for Phi3 {
    fn called(&self) -> [&'static str; 2] {
        ["phi3", "Phi3"]
    }

    fn read(&self, keys: &Keys, notes: &mut Vec<String>) -> Result<Config> {
        let config = llama::read(FamilyRef(&Phi3), keys, notes, &DEFAULTS)?;
        let window = match keys.get("sliding_window") {
            None => None,
            Some(_) => Some(Window { size: keys.size(&["sliding_window"], 1, MAX_SIZE)?, first_layer: 0 }),
        };
        Ok(Config { window, ..fused(config) })
    }

    fn write(&self, config: &Config) -> Map<String, Value> {
        let mut object = llama::write(config);
        if let Position::Rope(rope) = &config.position {
            object.insert("partial_rotary_factor".into(), json!(rope.width as f64 / config.head_width as f64));
        }
        object.entry("original_max_position_embeddings").or_insert(json!(config.positions));
        object.insert("sliding_window".into(), json!(config.window.map(|w| w.size)));
        object
    }

    fn names(&self) -> Names {
        Names {
            block: &[
                (Module::AttentionOut, "self_attn.o_proj"),
                (Module::Qkv, "self_attn.qkv_proj"),
                (Module::MlpIn, "mlp.gate_up_proj"),
                (Module::MlpOut, "mlp.down_proj"),
                (Module::Norm1, "input_layernorm"),
                (Module::Norm2, "post_attention_layernorm"),
            ],
            ..llama::NAMES
        }
    }
}

/// Llama's shape, stored as Phi-3 does.
pub fn fused(config: Config) -> Config {
    Config { qkv: Qkv::Fused, mlp: Mlp::Gated { activation: config.mlp.activation(), fused: true }, ..config }
}
