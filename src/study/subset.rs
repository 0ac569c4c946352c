//! What of a model a run of a study tunes: all weights, tensors by name, or a fresh adapter.

use crate::error::Result;
use crate::method::{Method, Tune};
use crate::model::{Adapter, Config, Layout, ParamId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// `all`, `bias`, `norms`, `last:N`, names of tensors, several by commas; or `lora:R`, an adapter of rank R that counts once (alpha is R, so that
/// one learning rate fits all ranks).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subset {
    tune: Tune,
    adapter: Option<Adapter>,
}

/// How much of a model a [`Subset`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Every tensor.
    All,
    /// Whole matrices, but not all.
    Tensors,
    /// An adapter.
    Adapter,
    /// Biases and gains alone.
    Vectors,
}

impl Subset {
    /// How much it is.
    pub fn size(&self) -> Size {
        match self.to_string().as_str() {
            "all" => Size::All,
            "bias" | "norms" => Size::Vectors,
            _ if self.adapter.is_some() => Size::Adapter,
            _ => Size::Tensors,
        }
    }

    /// Whether every tensor is tuned.
    pub fn is_all(&self) -> bool {
        self.tune.is_all()
    }

    /// Read one; the error is a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "lora" {
            return Err("\"lora\" is an adapter of no rank: give lora:1, lora:4 and so on".into());
        }
        let Some(rank) = text.strip_prefix("lora:") else {
            return Ok(Self { tune: text.parse()?, adapter: None });
        };
        let Ok(rank) = rank.parse::<u32>() else {
            return Err(format!("\"{text}\" is no rank of an adapter: give lora:1, lora:4 and so on"));
        };
        let adapter = Adapter { rank, alpha: rank.into(), targets: Vec::new() };
        adapter.check().map_err(|e| e.to_string())?;
        Ok(Self { tune: "lora".parse()?, adapter: Some(adapter) })
    }

    /// How tables call it.
    pub fn words(&self) -> String {
        match &self.adapter {
            Some(adapter) => format!("LoRA rank {}", adapter.rank),
            None if self.is_all() => "all weights".into(),
            None => match self.to_string().strip_prefix("last:") {
                Some("1") => "last block".into(),
                Some(n) if n.parse::<u32>().is_ok() => format!("last {n} blocks"),
                _ => self.to_string(),
            },
        }
    }

    /// The parameters of a model of `config`, a fresh adapter's included.
    fn layout(&self, config: &Config) -> Result<Layout> {
        Ok(match &self.adapter {
            Some(adapter) => Layout::new(&adapter.on(config)?),
            None => Layout::new(config),
        })
    }

    /// The tensors of a model of `config` that are tuned, in checkpoint order.
    pub fn tensors(&self, config: &Config) -> Result<Vec<ParamId>> {
        self.tune.ids(&self.layout(config)?)
    }

    /// `method` on these tensors alone; its groups are of them already.
    pub fn of(&self, mut method: Method) -> Result<Method> {
        let (tune, adapter) = match &mut method {
            Method::Ferret(s) => (&mut s.tune, &mut s.adapter),
            Method::FerretK(s) => (&mut s.tune, &mut s.adapter),
            Method::Dense(s) => (&mut s.tune, &mut s.adapter),
        };
        (*tune, *adapter) = (self.tune.clone(), self.adapter.clone());
        method.check()?;
        Ok(method)
    }
}

impl fmt::Display for Subset {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.adapter {
            Some(adapter) => write!(f, "lora:{}", adapter.rank),
            None => self.tune.fmt(f),
        }
    }
}

impl From<Subset> for String {
    fn from(subset: Subset) -> Self {
        subset.to_string()
    }
}

impl TryFrom<String> for Subset {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subset_is_its_text() {
        for (text, words) in [
            ("all", "all weights"),
            ("lora:4", "LoRA rank 4"),
            ("bias", "bias"),
            ("last:1", "last block"),
            ("last:2", "last 2 blocks"),
            ("last:1,ln_f", "last:1,ln_f"),
        ] {
            let subset = Subset::parse(text).unwrap();
            assert_eq!((subset.to_string(), subset.words()), (text.to_owned(), words.to_owned()));
            let json = serde_json::to_string(&subset).unwrap();
            assert_eq!((json.clone(), serde_json::from_str(&json).unwrap()), (format!("\"{text}\""), subset));
        }
        for wrong in ["lora", "lora:0", "lora:x", "lora:4,bias", "bias,lora:4", "", "last:0"] {
            assert!(Subset::parse(wrong).is_err(), "{wrong} is read");
        }
    }
}
