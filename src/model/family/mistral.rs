//! Mistral: Llama's shape, and attention that looks `sliding_window` tokens back.

use super::keys::{Keys, MAX_SIZE};
use super::llama::{self, Defaults};
use super::{Family, FamilyRef};
use crate::error::Result;
use crate::model::config::{Config, Window};
use serde_json::{Map, Value, json};

/// Mistral as a [`Family`].
pub struct Mistral;

const DEFAULTS: Defaults = Defaults { inner: 14336, kv_heads: Some(8), positions: 4096 * 32, ..llama::DEFAULTS };

impl Family for Mistral {
    fn called(&self) -> [&'static str; 2] {
        ["mistral", "Mistral"]
    }

    fn read(&self, keys: &Keys, notes: &mut Vec<String>) -> Result<Config> {
        keys.refuse_if_set(&["layer_types"])?;
        // A missing key is 4096 tokens, and null no window.
        let window = match keys.object.get("sliding_window") {
            Some(Value::Null) => None,
            _ => Some(Window { size: keys.size(&["sliding_window"], 4096, MAX_SIZE)?, first_layer: 0 }),
        };
        Ok(Config { window, ..llama::read(FamilyRef(&Mistral), keys, notes, &DEFAULTS)? })
    }

    fn write(&self, config: &Config) -> Map<String, Value> {
        let mut object = llama::write(config);
        object.insert("sliding_window".into(), json!(config.window.map(|w| w.size)));
        object
    }
}
