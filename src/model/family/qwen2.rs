//! Qwen2 and Qwen2.5: Llama's shape with biases on queries, keys and values, and a window that the upper blocks may have.

use super::keys::{Keys, MAX_LAYERS, MAX_SIZE};
use super::llama::{self, Defaults};
use super::{Family, FamilyRef};
use crate::error::{Error, Result};
use crate::model::config::{Biases, Config, Window};
use serde_json::{Map, Value, json};

/// Qwen2 and Qwen2.5 as a [`Family`].
pub struct Qwen2;

/// What a config that leaves a key out means.
pub const DEFAULTS: Defaults =
    Defaults { vocab: 151_936, inner: 22016, kv_heads: Some(32), positions: 32768, eos: None, ..llama::DEFAULTS };

/// Queries, keys and values alone.
pub const BIASES: Biases = Biases { qkv: true, attn_out: false, mlp_in: false, mlp_out: false };

impl Family for Qwen2 {
    fn called(&self) -> [&'static str; 2] {
        ["qwen2", "Qwen2"]
    }

    fn read(&self, keys: &Keys, notes: &mut Vec<String>) -> Result<Config> {
        let config = llama::read(FamilyRef(&Qwen2), keys, notes, &DEFAULTS)?;
        Ok(Config { biases: BIASES, window: window(keys, config.layers)?, ..config })
    }

    fn write(&self, config: &Config) -> Map<String, Value> {
        write(config)
    }
}

/// `layer_types` where it is given; else blocks from `max_window_layers` on, if `use_sliding_window`.
pub fn window(keys: &Keys, layers: usize) -> Result<Option<Window>> {
    if !keys.flag("use_sliding_window", false)? {
        return Ok(None);
    }
    if keys.object.get("sliding_window").is_some_and(Value::is_null) {
        return Ok(None);
    }
    let size = keys.size(&["sliding_window"], 4096, MAX_SIZE)?;
    let Some(types) = keys.get("layer_types") else {
        let first_layer = keys.integer("max_window_layers")?.unwrap_or(28).min(MAX_LAYERS) as usize;
        return Ok((first_layer < layers).then_some(Window { size, first_layer }));
    };
    let slides = |v: &Value| v.as_str() == Some("sliding_attention");
    let all = types.as_array().map(Vec::as_slice).unwrap_or_default();
    let first_layer = all.iter().position(slides).unwrap_or(all.len());
    let known = |v: &Value| slides(v) || v.as_str() == Some("full_attention");
    if all.len() != layers || !all.iter().all(known) || !all[first_layer..].iter().all(slides) {
        let what = format!(
            "layer_types is not one of full_attention and sliding_attention for each of {layers} blocks, those with a window last: \
             other patterns are not supported"
        );
        return Err(Error::file(keys.path, what));
    }
    Ok((first_layer < layers).then_some(Window { size, first_layer }))
}

/// Llama's keys, and those of the window.
pub fn write(config: &Config) -> Map<String, Value> {
    let mut object = llama::write(config);
    object.insert("use_sliding_window".into(), json!(config.window.is_some()));
    object.insert("sliding_window".into(), json!(config.window.map(|w| w.size)));
    object.insert("max_window_layers".into(), json!(config.window.map_or(config.layers, |w| w.first_layer)));
    object
}
