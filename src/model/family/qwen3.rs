//! Qwen3: Llama's shape with every head of queries and keys normalised, heads of a width of their own, and Qwen2's window.

use super::keys::{Keys, MAX_SIZE};
use super::{Family, FamilyRef, Names, llama, qwen2, rope};
use crate::error::Result;
use crate::model::config::{Biases, Config, Position};
use crate::model::layout::Module;
use serde_json::{Map, Value, json};

/// Qwen3 as a [`Family`].
pub struct Qwen3;

impl Family for Qwen3 {
    fn called(&self) -> [&'static str; 2] {
        ["qwen3", "Qwen3"]
    }

    fn read(&self, keys: &Keys, notes: &mut Vec<String>) -> Result<Config> {
        let mut config = llama::read(FamilyRef(&Qwen3), keys, notes, &qwen2::DEFAULTS)?;
        if keys.get("head_dim").is_none() {
            config.head_width = keys.size(&["head_dim"], 128, MAX_SIZE)?;
            config.position = Position::Rope(rope::read(keys, config.head_width, config.positions, 10_000.0)?);
        }
        let bias = keys.flag("attention_bias", false)?;
        config.biases = Biases { qkv: bias, attn_out: bias, ..Biases::default() };
        Ok(Config { head_norm: true, window: qwen2::window(keys, config.layers)?, ..config })
    }

    fn write(&self, config: &Config) -> Map<String, Value> {
        let mut object = qwen2::write(config);
        object.insert("attention_bias".into(), json!(config.biases.qkv));
        object
    }

    fn names(&self) -> Names {
        Names {
            block: &[
                (Module::Query, "self_attn.q_proj"),
                (Module::Key, "self_attn.k_proj"),
                (Module::Value, "self_attn.v_proj"),
                (Module::AttentionOut, "self_attn.o_proj"),
                (Module::QueryNorm, "self_attn.q_norm"),
                (Module::KeyNorm, "self_attn.k_norm"),
                (Module::Gate, "mlp.gate_proj"),
                (Module::Up, "mlp.up_proj"),
                (Module::MlpOut, "mlp.down_proj"),
                (Module::Norm1, "input_layernorm"),
                (Module::Norm2, "post_attention_layernorm"),
            ],
            ..llama::NAMES
        }
    }
}
