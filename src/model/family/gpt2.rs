//! GPT-2: `config.json` to [`Config`] and back, and the names of its tensors.
//!
//! Every key that changes the numbers is honoured or refused by name; the others are ignored. A missing key means what
//! it means to transformers' `GPT2Config`.

use crate::error::{Error, Result};
use crate::model::config::{Activation, Config};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Largest sizes accepted, far above any GPT-2: beyond them a file is broken, and nothing is allocated for it.
const MAX_SIZE: u64 = 1 << 24;
const MAX_LAYERS: u64 = 1 << 12;
const MAX_SCALARS: u128 = 1 << 40;

/// A config and what its reader should know about it.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The decoder's shape.
    pub config: Config,
    /// Sentences about keys that are read but not applied.
    pub notes: Vec<String>,
}

/// Read the text of a `config.json`; `path` is for messages.
pub fn parse(text: &str, path: &Path) -> Result<Parsed> {
    if text.trim().is_empty() {
        return Err(Error::file(path, "is empty, and the model's configuration in JSON is expected"));
    }
    let value: Value = serde_json::from_str(text).map_err(|e| Error::file(path, format!("is not valid JSON ({e})")))?;
    let Value::Object(object) = value else {
        return Err(Error::file(path, "holds no JSON object: the model's configuration is expected"));
    };
    let keys = Keys { object: &object, path };
    let mut notes = Vec::new();
    keys.check_family()?;
    keys.check_unsupported()?;

    let width = keys.size(&["n_embd", "hidden_size"], 768, MAX_SIZE)?;
    let positions = keys.size(&["n_positions", "max_position_embeddings", "n_ctx"], 1024, MAX_SIZE)?;
    if let (Some(n), Some(_)) = (keys.integer("n_ctx")?, keys.integer("n_positions")?)
        && n != positions as u64
    {
        notes.push(format!("n_ctx is {n} and n_positions {positions}: n_positions counts, as in transformers"));
    }
    let layers = keys.size(&["n_layer", "num_hidden_layers"], 12, MAX_LAYERS)?;
    let heads = keys.size(&["n_head", "num_attention_heads"], 12, MAX_SIZE)?;
    let vocab = keys.size(&["vocab_size"], 50257, MAX_SIZE)?;
    let inner = keys.size(&["n_inner"], 4 * width as u64, MAX_SIZE)?;
    if width % heads != 0 {
        let what = format!("n_embd {width} is not a multiple of n_head {heads}: the heads cannot share the width");
        return Err(Error::file(path, what));
    }
    let activation = match keys.string("activation_function")?.unwrap_or("gelu_new") {
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" => Activation::GeluTanh,
        "gelu" | "gelu_python" => Activation::GeluErf,
        "silu" | "swish" => Activation::Silu,
        other => {
            let what = format!(
                "activation_function \"{other}\" is not supported: gelu_new, gelu_pytorch_tanh, gelu_fast, \
                 gelu_accurate (tanh), gelu, gelu_python (erf) and silu, swish are"
            );
            return Err(Error::file(path, what));
        }
    };
    let norm_epsilon = keys.number("layer_norm_epsilon", 1e-5)?;
    if norm_epsilon <= 0.0 {
        return Err(Error::file(path, format!("layer_norm_epsilon is {norm_epsilon}, and must be above 0")));
    }
    let init_std = keys.number("initializer_range", 0.02)?;
    if init_std < 0.0 {
        return Err(Error::file(path, format!("initializer_range is {init_std}, and cannot be negative")));
    }
    if keys.flag("reorder_and_upcast_attn", false)? {
        notes.push("reorder_and_upcast_attn is set: it concerns half precision, and all arithmetic here is f32".into());
    }
    let dropout: Vec<String> = ["resid_pdrop", "embd_pdrop", "attn_pdrop"]
        .into_iter()
        .filter_map(|key| match keys.number(key, 0.1) {
            Ok(p) if p == 0.0 || !object.contains_key(key) => None,
            Ok(p) => Some(Ok(format!("{key} {p}"))),
            Err(e) => Some(Err(e)),
        })
        .collect::<Result<_>>()?;
    if !dropout.is_empty() {
        notes.push(format!("dropout ({}) is read but not applied: training here uses none", dropout.join(", ")));
    }
    let eos = keys.token("eos_token_id")?.unwrap_or(Some(50256));
    let eos = match eos {
        Some(id) if id < vocab as u64 => Some(id as u32),
        Some(id) => {
            if object.contains_key("eos_token_id") {
                notes.push(format!("eos_token_id {id} lies outside the vocabulary of {vocab}, and is ignored"));
            }
            None
        }
        None => None,
    };
    let config = Config {
        vocab,
        positions,
        width,
        layers,
        heads,
        inner,
        norm_epsilon,
        activation,
        tied: keys.flag("tie_word_embeddings", true)?,
        scale_by_width: keys.flag("scale_attn_weights", true)?,
        scale_by_layer: keys.flag("scale_attn_by_inverse_layer_idx", false)?,
        init_std,
        eos,
    };
    let count = scalars(&config);
    if count > MAX_SCALARS {
        let what = format!("describes a model of {count} parameters, more than this program can address");
        return Err(Error::file(path, what));
    }
    Ok(Parsed { config, notes })
}

/// Number of scalars of `config`, without building its layout: V C + P C + L (C (3C + C + 2I) + 9C + I) + 2C.
pub fn scalars(config: &Config) -> u128 {
    let [v, p, c, l, i] =
        [config.vocab, config.positions, config.width, config.layers, config.inner].map(|n| n as u128);
    let head = if config.tied { 0 } else { v * c };
    v * c + p * c + l * (c * (4 * c + 2 * i) + 9 * c + i) + 2 * c + head
}

/// The `config.json` that transformers writes for `config`.
pub fn to_json(config: &Config) -> String {
    let activation = match config.activation {
        Activation::GeluTanh => "gelu_new",
        Activation::GeluErf => "gelu",
        Activation::Silu => "silu",
    };
    let inner = if config.inner == 4 * config.width { Value::Null } else { json!(config.inner) };
    let value = json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": activation,
        "attn_pdrop": 0.0,
        "bos_token_id": config.eos,
        "embd_pdrop": 0.0,
        "eos_token_id": config.eos,
        "initializer_range": config.init_std,
        "layer_norm_epsilon": config.norm_epsilon,
        "n_ctx": config.positions,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": inner,
        "n_layer": config.layers,
        "n_positions": config.positions,
        "reorder_and_upcast_attn": false,
        "resid_pdrop": 0.0,
        "scale_attn_by_inverse_layer_idx": config.scale_by_layer,
        "scale_attn_weights": config.scale_by_width,
        "tie_word_embeddings": config.tied,
        "use_cache": true,
        "vocab_size": config.vocab,
    });
    format!("{value:#}\n")
}

/// What a tensor of a checkpoint file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorName<'a> {
    /// The parameter of this name in [`Layout`](crate::model::Layout).
    Parameter(&'a str),
    /// A causal mask that old checkpoints carry along (`attn.bias`, `attn.masked_bias`): not a parameter.
    Mask,
}

/// The prefix that `GPT2LMHeadModel` puts before every name but `lm_head.weight`, and `GPT2Model` does not.
pub const PREFIX: &str = "transformer.";

/// Our name for a tensor of a checkpoint file, and whether it carried the [`PREFIX`].
pub fn tensor_name(name: &str) -> (TensorName<'_>, bool) {
    let (short, prefixed) = match name.strip_prefix(PREFIX) {
        Some(short) => (short, true),
        None => (name, false),
    };
    let mask = short.strip_prefix("h.").and_then(|rest| rest.split_once('.')).is_some_and(|(layer, rest)| {
        layer.parse::<usize>().is_ok() && matches!(rest, "attn.bias" | "attn.masked_bias")
    });
    (if mask { TensorName::Mask } else { TensorName::Parameter(short) }, prefixed)
}

/// The name under which the parameter `name` is written.
pub fn file_name(name: &str, prefixed: bool) -> String {
    if prefixed && name != "lm_head.weight" { format!("{PREFIX}{name}") } else { name.to_owned() }
}

/// Typed access to the keys of a config.
struct Keys<'a> {
    object: &'a Map<String, Value>,
    path: &'a Path,
}

impl Keys<'_> {
    fn check_family(&self) -> Result<()> {
        let named = |s: &str| self.object.get("architectures").is_some_and(|a| a.to_string().contains(s));
        match self.string("model_type")? {
            Some("gpt2") => Ok(()),
            Some(other) => {
                let what = format!("model_type is \"{other}\"; only \"gpt2\" can be loaded");
                Err(Error::file(self.path, what))
            }
            None if named("GPT2") => Ok(()),
            None => Err(Error::file(self.path, "has no model_type: is this the config.json of a GPT-2 checkpoint?")),
        }
    }

    fn check_unsupported(&self) -> Result<()> {
        for key in ["add_cross_attention", "is_encoder_decoder"] {
            if self.flag(key, false)? {
                let what = format!("{key} is set: only a decoder without cross-attention can be loaded");
                return Err(Error::file(self.path, what));
            }
        }
        for key in ["quantization_config", "pruned_heads", "rope_scaling", "rope_parameters", "adapters"] {
            match self.object.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::Object(o)) if o.is_empty() => {}
                Some(Value::Array(a)) if a.is_empty() => {}
                Some(_) => {
                    let what = format!("{key} is set, which changes the model in a way that is not supported");
                    return Err(Error::file(self.path, what));
                }
            }
        }
        Ok(())
    }

    fn wrong<T>(&self, key: &str, found: &Value, expected: &str) -> Result<T> {
        let mut shown = found.to_string();
        if shown.len() > 60 {
            shown = format!("{}...", shown.chars().take(57).collect::<String>());
        }
        Err(Error::file(self.path, format!("{key} is {shown}, and {expected} is expected")))
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    fn integer(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n) => Ok(Some(n)),
                None => self.wrong(key, v, "a whole number"),
            },
        }
    }

    /// The first of `names` that is given; the others, `n_ctx` apart, are aliases and must agree.
    fn size(&self, names: &[&str], default: u64, max: u64) -> Result<usize> {
        let mut found: Option<(&str, u64)> = None;
        for &name in names {
            let Some(n) = self.integer(name)? else { continue };
            match found {
                Some((first, m)) if m != n && name != "n_ctx" => {
                    let what = format!("{first} is {m} but {name} is {n}: they are two names of one size");
                    return Err(Error::file(self.path, what));
                }
                Some(_) => {}
                None => found = Some((name, n)),
            }
        }
        let (name, n) = found.unwrap_or((names[0], default));
        if n == 0 || n > max {
            return Err(Error::file(self.path, format!("{name} is {n}, and must lie between 1 and {max}")));
        }
        Ok(n as usize)
    }

    fn number(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => match v.as_f64() {
                Some(x) if x.is_finite() => Ok(x),
                _ => self.wrong(key, v, "a number"),
            },
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => self.wrong(key, v, "true or false"),
        }
    }

    fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(v) => self.wrong(key, v, "a string"),
        }
    }

    /// A token id: `Some(None)` where the key says null; the first where it lists several.
    fn token(&self, key: &str) -> Result<Option<Option<u64>>> {
        match self.object.get(key) {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(None)),
            Some(Value::Array(ids)) if ids.is_empty() => Ok(Some(None)),
            Some(v) => match v.get(0).unwrap_or(v).as_u64() {
                Some(id) => Ok(Some(Some(id))),
                None => self.wrong(key, v, "a token id"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Layout;

    fn read(text: &str) -> Result<Parsed> {
        parse(text, Path::new("config.json"))
    }

    fn with(key: &str, value: &str) -> String {
        format!(
            r#"{{"model_type":"gpt2","n_embd":8,"n_layer":2,"n_head":2,"n_positions":16,"vocab_size":11,"{key}":{value}}}"#
        )
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = read(r#"{"model_type":"gpt2"}"#).unwrap().config;
        assert_eq!(scalars(&config), 124_439_808);
        assert_eq!((config.positions, config.inner, config.eos), (1024, 3072, Some(50256)));
        assert!(config.tied && config.scale_by_width && !config.scale_by_layer);
        assert_eq!(read(&to_json(&config)).unwrap().config, config);
    }

    #[test]
    fn every_number_changing_key_is_honoured() {
        let base = read(&with("x", "0")).unwrap().config;
        let config = |key: &str, value: &str| read(&with(key, value)).unwrap().config;
        assert_eq!(config("n_inner", "20"), Config { inner: 20, ..base.clone() });
        assert_eq!(config("layer_norm_epsilon", "1e-6"), Config { norm_epsilon: 1e-6, ..base.clone() });
        assert_eq!(
            config("activation_function", "\"gelu\""),
            Config { activation: Activation::GeluErf, ..base.clone() }
        );
        assert_eq!(config("tie_word_embeddings", "false"), Config { tied: false, ..base.clone() });
        assert_eq!(config("scale_attn_weights", "false"), Config { scale_by_width: false, ..base.clone() });
        assert_eq!(config("scale_attn_by_inverse_layer_idx", "true"), Config { scale_by_layer: true, ..base.clone() });
        assert_eq!(config("eos_token_id", "3"), Config { eos: Some(3), ..base.clone() });
        assert_eq!(config("eos_token_id", "[4, 5]"), Config { eos: Some(4), ..base.clone() });
        assert_eq!(config("eos_token_id", "null"), base);
        for c in [base, config("tie_word_embeddings", "false"), config("n_inner", "20")] {
            assert_eq!(scalars(&c), Layout::new(&c).scalars() as u128);
            assert_eq!(read(&to_json(&c)).unwrap().config, c);
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (key, value, says) in [
            ("activation_function", "\"relu\"", "\"relu\""),
            ("add_cross_attention", "true", "add_cross_attention"),
            ("quantization_config", "{\"bits\":4}", "quantization_config"),
            ("pruned_heads", "{\"0\":[1]}", "pruned_heads"),
            ("hidden_size", "9", "hidden_size is 9"),
            ("n_inner", "0", "n_inner is 0"),
            ("n_inner", "1e3", "whole number"),
            ("n_inner", "1152921504606846976", "between 1 and"),
            ("layer_norm_epsilon", "\"a\"", "a number"),
            ("layer_norm_epsilon", "0", "above 0"),
            ("scale_attn_weights", "1", "true or false"),
        ] {
            let error = read(&with(key, value)).unwrap_err().to_string();
            assert!(error.contains(says), "{key}: {error}");
        }
        let llama = read(r#"{"model_type":"llama"}"#).unwrap_err().to_string();
        assert!(llama.contains("\"llama\""), "{llama}");
        let heads = read(r#"{"model_type":"gpt2","n_head":5}"#).unwrap_err().to_string();
        assert!(heads.contains("768 is not a multiple of n_head 5"), "{heads}");
        let huge = r#"{"model_type":"gpt2","n_embd":16777216,"n_head":1,"n_layer":4096,"n_inner":16777216}"#;
        assert!(read(huge).unwrap_err().to_string().contains("parameters"));
    }

    #[test]
    fn dropout_is_reported() {
        assert!(read(&with("resid_pdrop", "0.1")).unwrap().notes[0].contains("resid_pdrop 0.1"));
        assert!(read(&with("resid_pdrop", "0.0")).unwrap().notes.is_empty());
    }

    #[test]
    fn masks_are_told_from_parameters() {
        assert_eq!(tensor_name("transformer.h.3.attn.bias"), (TensorName::Mask, true));
        assert_eq!(tensor_name("h.11.attn.masked_bias"), (TensorName::Mask, false));
        assert_eq!(tensor_name("h.0.attn.c_attn.bias"), (TensorName::Parameter("h.0.attn.c_attn.bias"), false));
        assert_eq!(file_name("lm_head.weight", true), "lm_head.weight");
        assert_eq!(file_name("wte.weight", true), "transformer.wte.weight");
    }
}
