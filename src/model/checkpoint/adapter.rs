//! Adapters in PEFT's layout: a folder with `adapter_config.json` and `adapter_model.safetensors`, beside a base model that is not touched.

use super::open::{OpenCheckpoint, Source};
use super::safetensors::{Dtype, File};
use super::save::{SaveOptions, entry};
use super::write::{self, Content, Entry};
use crate::error::{Error, Result};
use crate::fsio;
use crate::kernel::Scalars;
use crate::model::adapter::Adapter;
use crate::model::config::{Config, Order};
use crate::model::hub::{self, Need};
use crate::model::layout::Layout;
use crate::model::weights::Weights;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The adapter's tensors.
pub const WEIGHTS: &str = "adapter_model.safetensors";
/// Its shape, and what it belongs to.
pub const CONFIG: &str = "adapter_config.json";
/// What PEFT puts before the names of the model's modules.
const PREFIX: &str = "base_model.model.";
/// In the header of the weights: the hash of the base model's tensors.
pub const BASE: &str = "base_sha256";

/// Whether `folder` is one of an adapter, and no model's of its own.
pub fn is_adapter(folder: &Path) -> bool {
    folder.join(CONFIG).is_file() && !folder.join(super::CONFIG).exists()
}

/// What `adapter_config.json` says: the shape, and the base model's name where it has one. Every key that changes numbers is honoured or refused.
pub fn read_config(folder: &Path) -> Result<(Adapter, Option<String>)> {
    let path = folder.join(CONFIG);
    let refuse = |what: String| Err(Error::file(&path, what));
    let value: Value = serde_json::from_str(&fsio::read_text(&path)?)
        .map_err(|e| Error::file(&path, format!("is not valid JSON ({e})")))?;
    if value["peft_type"] != "LORA" {
        return refuse(format!("peft_type is {}, and LORA is what can be read", short(&value["peft_type"])));
    }
    for key in [
        "use_dora",
        "use_rslora",
        "use_qalora",
        "lora_bias",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "layers_to_transform",
        "layer_replication",
        "exclude_modules",
        "target_parameters",
        "trainable_token_indices",
        "alora_invocation_tokens",
        "arrow_config",
        "megatron_config",
        "use_bdlora",
        "kasa_config",
        "monteclora_config",
        "velora_config",
    ] {
        let empty = match &value[key] {
            Value::Null | Value::Bool(false) => true,
            Value::Object(o) => o.is_empty(),
            Value::Array(a) => a.is_empty(),
            _ => false,
        };
        if !empty {
            return refuse(format!(
                "{key} is {}, which cannot be applied: make an adapter without",
                short(&value[key])
            ));
        }
    }
    if !value["bias"].is_null() && value["bias"] != "none" {
        return refuse(format!(
            "bias is {}, which cannot be applied: make an adapter with none",
            short(&value["bias"])
        ));
    }
    let (Some(rank), Some(alpha)) = (value["r"].as_u64(), value["lora_alpha"].as_f64()) else {
        return refuse("has no r and lora_alpha, the adapter's rank and its scale".into());
    };
    let Some(targets) = value["target_modules"].as_array() else {
        return refuse(format!(
            "target_modules is {}, and a list of names is expected",
            short(&value["target_modules"])
        ));
    };
    let mut targets: Vec<String> = targets.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    targets.sort();
    if targets.is_empty() {
        return refuse("target_modules names no layer".into());
    }
    let adapter = Adapter { rank: u32::try_from(rank).unwrap_or(u32::MAX), alpha, targets };
    adapter.check().map_err(|e| Error::file(&path, e.to_string()))?;
    Ok((adapter, value["base_model_name_or_path"].as_str().map(str::to_owned)))
}

/// The config of the base model that the adapter in `folder` names, with the adapter.
pub fn full_config(folder: &Path) -> Result<Config> {
    let (adapter, base) = read_config(folder)?;
    adapter.on(&super::config_of(&locate(folder, base, Need::Config)?)?.0.config)
}

/// The base model's folder.
fn locate(folder: &Path, base: Option<String>, need: Need) -> Result<PathBuf> {
    let Some(base) = base else {
        return Err(Error::file(folder.join(CONFIG), "names no base model: give the model and the adapter apart"));
    };
    hub::locate(&base, need).map_err(|e| {
        let what = format!("its base model cannot be opened ({e}): give the model and the adapter apart");
        Error::file(folder.join(CONFIG), what)
    })
}

fn short(value: &Value) -> String {
    crate::error::quoted(value.to_string())
}

impl OpenCheckpoint {
    /// Open the adapter in `folder` on the base model that its config names.
    pub(super) fn adapter(folder: &Path) -> Result<Self> {
        let found = locate(folder, read_config(folder)?.1, Need::Everything)?;
        Self::folder(&found)?.adapted(folder)
    }

    /// The same with the adapter in `folder`. Refuses one of another base model, as far as names, shapes and the hash in it tell.
    pub fn adapted(self, folder: &Path) -> Result<Self> {
        let (adapter, _) = read_config(folder)?;
        let path = folder.join(WEIGHTS);
        let another = |what: String| Error::file(&path, format!("{what}: is it an adapter of this model?"));
        let config = adapter.on(&self.config).map_err(|e| Error::file(folder.join(CONFIG), e.to_string()))?;
        let layout = Layout::new(&config);
        if !path.exists() {
            return Err(Error::file(folder, format!("has no {WEIGHTS}")));
        }
        let file = File::open(&path)?;
        if let Some((_, named)) = file.metadata()?.into_iter().find(|(key, _)| key == BASE) {
            let found = self.sha256()?;
            if found != named {
                return Err(another(format!("was made for tensors with SHA-256 {named}, this model has {found}")));
            }
        }
        let Self { notes, config_json, folder: base, prefixed, mut files, mut sources, .. } = self;
        {
            let tensors = file.tensors()?;
            for name in tensors.names() {
                let short =
                    name.strip_prefix(PREFIX).and_then(|n| config.family.tensor_name(n)).map(|(short, _)| short);
                let own = |s: &&crate::model::layout::ParamSpec| s.adapter.is_some() && Some(s.name.as_str()) == short;
                let Some(spec) = layout.specs().iter().find(own) else {
                    return Err(another(format!("{name} is no tensor of the adapter that {CONFIG} describes")));
                };
                let shape = tensors.tensor(name).map_err(|e| Error::file(&path, e.to_string()))?.shape().to_vec();
                if shape != spec.shape {
                    return Err(another(format!("{name} is {shape:?}, expected {:?}", spec.shape)));
                }
                sources.found.insert(spec.name.clone(), Source { file: files.len(), name: name.to_owned() });
            }
        }
        if let Some(spec) = layout.specs().iter().find(|s| !sources.found.contains_key(&s.name)) {
            return Err(another(format!("has no {}", spec.name)));
        }
        files.push(file);
        Ok(Self { config, layout, notes, config_json, folder: base, prefixed, files, sources })
    }
}

/// Refuse what the adapter's file in `folder` says beside its tensors and `base`, the hash of the base model's; returns the files that were looked at, and
/// whether the tensors lie in the order in which this program writes them.
pub fn refuse_unused(folder: &Path, base: &str) -> Result<(Vec<PathBuf>, bool)> {
    let file = File::open(&folder.join(WEIGHTS))?;
    let notes = file.metadata()?;
    if !notes.iter().any(|(key, _)| key == BASE) {
        return Err(Error::file(
            file.path(),
            format!("has no note {BASE:?}, by which it is bound to its base model: was it taken out?"),
        ));
    }
    for (key, value) in notes {
        if ![("format", "pt"), (BASE, base)].contains(&(key.as_str(), value.as_str())) {
            return Err(Error::file(
                file.path(),
                format!("holds the note {key:?}, which is none of an adapter's: write it without"),
            ));
        }
    }
    if file.idle_header_bytes()? > 8 {
        return Err(Error::file(
            file.path(),
            "has a header with bytes that say nothing: write the adapter anew, without them",
        ));
    }
    let order = file.order()?;
    let sorted = order.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
    Ok((vec![file.path().to_owned(), folder.join(CONFIG)], sorted))
}

/// Write the adapter of `weights` to `dir`, as PEFT would: [`super::save`] for weights that have one.
pub(super) fn save(
    dir: &Path,
    weights: &Weights<impl Scalars>,
    adapter: &Adapter,
    options: &SaveOptions,
) -> Result<()> {
    let Weights { config, layout, tensors } = weights;
    let own = |i: &usize| layout.specs()[*i].adapter.is_some();
    let mut entries: Vec<Entry<'_>> = (0..layout.len())
        .filter(own)
        .map(|i| {
            let mut entry =
                entry(config, &layout.specs()[i], true, Dtype::F32, move || Ok(Content::Lent(tensors[i].view())));
            entry.name = format!("{PREFIX}{}", entry.name);
            entry
        })
        .collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let base = options.tokenizer_from.as_ref().map(|folder| folder.display().to_string());
    let text = json!({
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": config.order == Order::InOut,
        "inference_mode": true,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": adapter.rank,
        "target_modules": adapter.named_targets(config),
        "task_type": "CAUSAL_LM",
    });
    fsio::fill_folder(dir, |dir| {
        fsio::write(&dir.join(CONFIG), format!("{text:#}\n").as_bytes())?;
        write::write(&dir.join(WEIGHTS), &entries, &options.metadata, fsio::Access::Shared)
    })
}
