//! Typed access to the keys of a `config.json`, with the sentences for what is wrong there.

use crate::error::{Error, Result, quoted};
use crate::model::config::Activation;
use serde_json::{Map, Value};
use std::path::Path;

/// Largest sizes accepted, far above any model's: beyond them a file is broken, and nothing is allocated for it.
pub const MAX_SIZE: u64 = 1 << 24;
/// As [`MAX_SIZE`], for blocks.
pub const MAX_LAYERS: u64 = 1 << 12;

/// The keys of a config.
pub struct Keys<'a> {
    /// All of them.
    pub object: &'a Map<String, Value>,
    /// For messages.
    pub path: &'a Path,
}

impl Keys<'_> {
    /// What no family here supports.
    pub fn refuse_unsupported(&self) -> Result<()> {
        for key in ["add_cross_attention", "is_encoder_decoder"] {
            if self.flag(key, false)? {
                let what = format!("{key} is set: only a decoder without cross-attention can be loaded");
                return Err(Error::file(self.path, what));
            }
        }
        self.refuse_if_set(&["quantization_config", "pruned_heads", "adapters"])
    }

    /// Refuse keys that change the model in a way that its family does not know here.
    pub fn refuse_if_set(&self, keys: &[&str]) -> Result<()> {
        for key in keys {
            match self.object.get(*key) {
                None | Some(Value::Null | Value::Bool(false)) => {}
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

    /// The value, where there is one and it is not null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    /// A whole number.
    pub fn integer(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n) => Ok(Some(n)),
                None => self.wrong(key, v, "a whole number"),
            },
        }
    }

    /// The first of `names` that is given; the others, `n_ctx` apart, are aliases and must agree.
    pub fn size(&self, names: &[&str], default: u64, max: u64) -> Result<usize> {
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

    /// The width of a head: `head_dim` where it is given, else the width shared among the heads.
    pub fn head_width(&self, width: usize, heads: usize) -> Result<usize> {
        if self.get("head_dim").is_some() {
            return self.size(&["head_dim"], 1, MAX_SIZE);
        }
        if width % heads != 0 {
            let what = format!(
                "hidden_size {width} is not a multiple of num_attention_heads {heads}: the heads cannot share the width"
            );
            return Err(Error::file(self.path, what));
        }
        Ok(width / heads)
    }

    /// A finite number.
    pub fn number(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => match v.as_f64() {
                Some(x) if x.is_finite() => Ok(x),
                _ => self.wrong(key, v, "a number"),
            },
        }
    }

    /// A number above 0.
    pub fn positive(&self, key: &str, default: f64) -> Result<f64> {
        match self.number(key, default)? {
            x if x > 0.0 => Ok(x),
            x => Err(Error::file(self.path, format!("{key} is {x}, and must be above 0"))),
        }
    }

    /// The standard deviation of fresh weights.
    pub fn init_std(&self) -> Result<f64> {
        match self.number("initializer_range", 0.02)? {
            x if x < 0.0 => Err(Error::file(self.path, format!("initializer_range is {x}, and cannot be negative"))),
            x => Ok(x),
        }
    }

    /// True or false.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => self.wrong(key, v, "true or false"),
        }
    }

    /// A string.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(v) => self.wrong(key, v, "a string"),
        }
    }

    /// The nonlinearity that `key` names.
    pub fn activation(&self, key: &str, default: &str) -> Result<Activation> {
        match self.string(key)?.unwrap_or(default) {
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" => Ok(Activation::GeluTanh),
            "gelu" | "gelu_python" => Ok(Activation::GeluErf),
            "silu" | "swish" => Ok(Activation::Silu),
            other => {
                let what = format!(
                    "{key} \"{}\" is not supported: gelu_new, gelu_pytorch_tanh, gelu_fast, \
                     gelu_accurate (tanh), gelu, gelu_python (erf) and silu, swish are",
                    quoted(other)
                );
                Err(Error::file(self.path, what))
            }
        }
    }

    /// Say that a split of matrix products, which changes no more than their rounding, is not made.
    pub fn note_rounding(&self, key: &str, notes: &mut Vec<String>) -> Result<()> {
        match self.integer(key)? {
            None | Some(0 | 1) => {}
            Some(n) => notes.push(format!("{key} {n} is read but not applied: it changes rounding alone")),
        }
        Ok(())
    }

    /// Say which probabilities of dropout are not applied.
    pub fn note_dropout(&self, keys: &[&str], notes: &mut Vec<String>) -> Result<()> {
        let mut found = Vec::new();
        for key in keys.iter().filter(|key| self.object.contains_key(**key)) {
            let p = self.number(key, 0.0)?;
            if p != 0.0 {
                found.push(format!("{key} {p}"));
            }
        }
        if !found.is_empty() {
            notes.push(format!("dropout ({}) is read but not applied: training here uses none", found.join(", ")));
        }
        Ok(())
    }

    /// The token that ends a text: the first where several are listed, `default` without the key, none where it says null or lies
    /// outside the vocabulary.
    pub fn eos(&self, default: Option<u64>, vocab: usize, notes: &mut Vec<String>) -> Result<Option<u32>> {
        let key = "eos_token_id";
        let id = match self.object.get(key) {
            None => default,
            Some(Value::Null) => None,
            Some(Value::Array(ids)) if ids.is_empty() => None,
            Some(v) => match v.get(0).unwrap_or(v).as_u64() {
                Some(id) => Some(id),
                None => return self.wrong(key, v, "a token id"),
            },
        };
        match id {
            Some(id) if id < vocab as u64 => Ok(Some(id as u32)),
            Some(id) => {
                if self.object.contains_key(key) {
                    notes.push(format!("eos_token_id {id} lies outside the vocabulary of {vocab}, and is ignored"));
                }
                Ok(None)
            }
            None => Ok(None),
        }
    }
}
