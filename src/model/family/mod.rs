//! One file a family of checkpoints: `config.json` to [`Config`] and back, the names and order of tensors, what lies in another order in
//! the file than in memory. Nothing outside this folder knows a family's name.
//!
//! Every key of a `config.json` that changes the numbers is honoured or refused by name; the others are ignored. A missing key means
//! what it means to transformers.

mod bloom;
mod gpt2;
mod keys;
mod llama;
mod mistral;
mod phi3;
mod preset;
mod qwen2;
mod qwen3;
mod rope;

pub use preset::Preset;

use super::config::Config;
use super::layout::{Module, ParamSpec, Side};
use crate::error::{Error, Result};
use keys::Keys;
use serde_json::{Map, Value};
use std::path::Path;

/// What is particular to a family's checkpoints.
trait Family: Send + Sync {
    /// Its `model_type`, and how the names of its architectures begin.
    fn called(&self) -> [&'static str; 2];
    /// The architecture with an output head, as transformers calls it.
    fn class(&self) -> String {
        format!("{}ForCausalLM", self.called()[1])
    }
    /// `config.json` to what it means; sentences about keys that are read but not applied go to `notes`.
    fn read(&self, keys: &Keys, notes: &mut Vec<String>) -> Result<Config>;
    /// The keys that transformers writes for `config`, beside `model_type` and `architectures`.
    fn write(&self, config: &Config) -> Map<String, Value>;
    /// The names of its tensors: Llama's, where nothing else is said.
    fn names(&self) -> Names {
        llama::NAMES
    }
    /// Whether the tensor `name`, without the prefix, is no parameter but something that old files carry along: the rotation's wavelengths, where
    /// nothing else is said.
    fn is_buffer(&self, name: &str) -> bool {
        name.ends_with("rotary_emb.inv_freq")
    }
    /// The order of rows in memory, by their numbers in the file, where it is not the file's.
    fn row_order(&self, _config: &Config, _spec: &ParamSpec) -> Option<Vec<usize>> {
        None
    }
    /// Whether files are written with the tensors in order of name, as transformers does, or in the layout's order.
    fn sorts_files(&self) -> bool {
        true
    }
}

/// The names of a family's tensors, without `.weight` and `.bias`, in the order in which transformers counts parameters.
#[derive(Clone, Copy)]
pub struct Names {
    /// Put before every name but the head's in files of a model with a head; files of the base model are without.
    pub prefix: &'static str,
    /// Before the blocks.
    pub before: &'static [(Module, &'static str)],
    /// What the blocks are called.
    pub blocks: &'static str,
    /// Within a block.
    pub block: &'static [(Module, &'static str)],
    /// The final norm.
    pub norm: &'static str,
    /// The output head, never prefixed.
    pub head: &'static str,
}

/// All that can be read. The order is that of messages.
static FAMILIES: [&dyn Family; 7] =
    [&gpt2::Gpt2, &llama::Llama, &mistral::Mistral, &qwen2::Qwen2, &qwen3::Qwen3, &bloom::Bloom, &phi3::Phi3];

/// The family that a decoder belongs to.
#[derive(Clone, Copy)]
pub struct FamilyRef(&'static dyn Family);

impl PartialEq for FamilyRef {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl std::fmt::Debug for FamilyRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FamilyRef {
    /// What `model_type` says, for messages and reports.
    pub fn name(self) -> &'static str {
        self.0.called()[0]
    }

    /// The names of its tensors.
    pub fn names(self) -> Names {
        self.0.names()
    }

    /// Our name for a tensor of a checkpoint file, and whether it carried the prefix; none for what is no parameter.
    pub fn tensor_name(self, name: &str) -> Option<(&str, bool)> {
        let (short, prefixed) = match name.strip_prefix(self.names().prefix) {
            Some(short) => (short, true),
            None => (name, false),
        };
        (!self.0.is_buffer(short)).then_some((short, prefixed))
    }

    /// The name under which the parameter `name` is written.
    pub fn file_name(self, name: &str, prefixed: bool) -> String {
        if prefixed && name != self.head_name() { format!("{}{name}", self.names().prefix) } else { name.to_owned() }
    }

    /// The name of an output head of its own.
    pub fn head_name(self) -> String {
        format!("{}.weight", self.names().head)
    }

    /// The order of a parameter's rows in memory, by their numbers in the file, where it is not the file's.
    pub fn row_order(self, config: &Config, spec: &ParamSpec) -> Option<Vec<usize>> {
        // The rows of an adapter's B are outputs, as a weight's are; those of its A are not.
        if spec.adapter == Some(Side::A) {
            return None;
        }
        self.0.row_order(config, spec)
    }

    /// Whether files are written with the tensors in order of name, as transformers does, or in the layout's order.
    pub fn sorts_files(self) -> bool {
        self.0.sorts_files()
    }

    /// The `config.json` that transformers writes for `config`.
    pub fn to_json(self, config: &Config) -> String {
        let mut object = Map::new();
        object.insert("architectures".into(), vec![self.0.class()].into());
        object.insert("model_type".into(), self.name().into());
        object.extend(self.0.write(config));
        format!("{:#}\n", Value::Object(object))
    }
}

/// A config and what its reader should know about it.
#[derive(Clone, Debug)]
pub struct ParsedConfig {
    /// The decoder that it describes.
    pub config: Config,
    /// Sentences about keys that are read but not applied.
    pub notes: Vec<String>,
}

/// More parameters than this are a broken file, and nothing is allocated for it.
const MAX_SCALARS: u128 = 1 << 40;

/// Read the text of a `config.json`; `path` is for messages.
pub fn parse(text: &str, path: &Path) -> Result<ParsedConfig> {
    if text.trim().is_empty() {
        return Err(Error::file(path, "is empty, and the model's configuration in JSON is expected"));
    }
    let value: Value = serde_json::from_str(text).map_err(|e| Error::file(path, format!("is not valid JSON ({e})")))?;
    let Value::Object(object) = value else {
        return Err(Error::file(path, "holds no JSON object: the model's configuration is expected"));
    };
    let keys = Keys { object: &object, path };
    let family = find(&keys)?;
    keys.refuse_unsupported()?;
    let mut notes = Vec::new();
    let config = family.read(&keys, &mut notes)?;
    check(&config, path)?;
    Ok(ParsedConfig { config, notes })
}

/// The family that `model_type` or, without one, the architecture names.
fn find(keys: &Keys) -> Result<&'static dyn Family> {
    let known = || FAMILIES.iter().map(|f| f.called()[0]).collect::<Vec<_>>().join(", ");
    match keys.string("model_type")? {
        Some(name) => FAMILIES.iter().find(|f| f.called()[0] == name).copied().ok_or_else(|| {
            let what =
                format!("model_type is \"{}\", which cannot be loaded: {} can", crate::error::quoted(name), known());
            Error::file(keys.path, what)
        }),
        None => {
            let named = keys.object.get("architectures").map(Value::to_string).unwrap_or_default();
            FAMILIES.iter().find(|f| named.contains(&format!("\"{}", f.called()[1]))).copied().ok_or_else(|| {
                let what = format!("has no model_type: is this the config.json of a checkpoint of {}?", known());
                Error::file(keys.path, what)
            })
        }
    }
}

/// What `json!` of an object holds.
fn object(value: Value) -> Map<String, Value> {
    let Value::Object(object) = value else { unreachable!("an object was written down") };
    object
}

/// Sizes that cannot be true together.
fn check(config: &Config, path: &Path) -> Result<()> {
    if config.kv_heads > 0 && !config.heads.is_multiple_of(config.kv_heads) {
        let what = format!(
            "num_attention_heads {} is not a multiple of num_key_value_heads {}: the heads cannot share keys",
            config.heads, config.kv_heads
        );
        return Err(Error::file(path, what));
    }
    config.check().map_err(|what| Error::file(path, what))?;
    let count = config.scalars();
    if count > MAX_SCALARS {
        let what = format!("describes a model of {count} parameters, more than this program can address");
        return Err(Error::file(path, what));
    }
    Ok(())
}
