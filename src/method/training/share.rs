//! What the ranks of a run tell each other before it: that they were told the same, what the first one read in the folder, the key, and where the run stands.
//!
//! One rank writes, the first: the others have no folder, and need not see its disk. The key is drawn, or read, by the first rank and sent to the others, which keep it in
//! memory alone.

use super::super::folder::{Folder, Terms};
use super::super::state;
use super::Request;
use crate::data::examples_sha256;
use crate::error::{Error, Result};
use crate::fsio;
use crate::ranks::{Fact, Ranks, agree, broadcast};
use crate::rng::Secret;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Refuse to begin where the ranks were told different things.
pub(super) fn told_the_same(request: &Request, told: &Terms) -> Result<()> {
    let held_out = request.held_out.as_ref().map(|d| examples_sha256(&d.examples));
    let mut facts: Vec<Fact> = vec![
        ("base model, by its SHA-256,", told.base_sha256.clone()),
        ("set of records, by its SHA-256,", told.records_sha256.clone()),
        ("set of held-out records, by its SHA-256,", held_out.unwrap_or_else(|| "none".into())),
    ];
    facts.extend([
        ("way of giving records: in shards,", request.shards.to_string()),
        ("`unit`", format!("users: {}, windows of a text: {}", request.records.users, request.records.windows)),
    ]);
    facts.extend(settings(told));
    facts.extend([
        ("`max_steps`", told.stop.to_string()),
        ("`delta`", request.delta.to_string()),
        ("`insecure_seed`", format!("{:?}", request.insecure_seed)),
        ("`log_private`", request.log_private.to_string()),
        ("`resume`", request.resume.to_string()),
        ("`restart_diverged`", request.restart_diverged.to_string()),
        ("`out`", request.out.display().to_string()),
    ]);
    agree(&*request.ranks, "what the run is told", &facts)
}

/// The settings of the method. A few that are easily mistaken have their names, the rest goes as a whole.
fn settings(told: &Terms) -> Vec<Fact> {
    let object = serde_json::to_value(&told.method).unwrap_or_default();
    let own = object.as_object().and_then(|of| of.values().next()).cloned().unwrap_or_default();
    let of = |key: &str| own.get(key).map_or_else(|| "by default".into(), Value::to_string);
    vec![
        ("`method`", told.method.name().to_owned()),
        ("`seed`", of("seed")),
        ("`batch`", of("batch")),
        ("`micro_batch`", of("micro_batch")),
        ("`learning_rate`", of("learning_rate")),
        ("list of settings", object.to_string()),
    ]
}

/// What the first rank was told, or read in the folder, on every rank.
pub(super) fn of_the_first(ranks: &dyn Ranks, told: Terms) -> Result<Terms> {
    let text = serde_json::to_vec(&told).expect("strings and numbers");
    let text = broadcast(ranks, "what the folder tells", &text)?;
    if ranks.is_first() {
        return Ok(told);
    }
    serde_json::from_slice(&text)
        .map_err(|e| Error::Rank(format!("the first rank told nothing that can be read ({e})")))
}

/// The first rank's key on every rank, and the folder to go on from.
pub(super) fn key_and_state(
    ranks: &dyn Ranks,
    secret: Option<Secret>,
    folder: Option<&Folder>,
) -> Result<(Option<Secret>, StateFolder)> {
    let key = broadcast(ranks, "key", secret.as_ref().map(Secret::to_ranks).as_ref().map_or(&[][..], |key| key))?;
    let current = match folder.filter(|_| ranks.size() > 1) {
        Some(folder) => state::current(&folder.saved())?,
        None => None,
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let head = current.as_ref().map_or(String::new(), |(step, path)| format!("{step} {}", name(path)));
    let head = broadcast(ranks, "name of the state", head.as_bytes())?;
    let bytes = match &current {
        Some((_, path)) => std::fs::read(path).map_err(|e| Error::io(path, e))?,
        None => Vec::new(),
    };
    let bytes = broadcast(ranks, "state", &bytes)?;
    if let Some(folder) = folder {
        return Ok((secret, StateFolder { path: folder.saved(), copy: false }));
    }
    let secret = if key.is_empty() { None } else { Some(Secret::from_ranks(&key)?) };
    let copy = StateFolder::copy()?;
    let head = String::from_utf8_lossy(&head).into_owned();
    if let Some((step, file)) = head.split_once(' ') {
        let step = step.parse().map_err(|_| Error::Rank(format!("the first rank sent no state: {head}")))?;
        state::put(&copy.path, step, file, &bytes)?;
    }
    Ok((secret, copy))
}

/// Where a run's progress lies: in its folder, or copied from the first rank's for as long as it is read.
pub(super) struct StateFolder {
    pub(super) path: PathBuf,
    copy: bool,
}

impl StateFolder {
    /// An empty folder, for this process alone.
    fn copy() -> Result<Self> {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("ferret-rank-{}-{}", std::process::id(), time.as_nanos());
        let path = std::env::temp_dir().join(name);
        fsio::private_folder(&path)?;
        Ok(Self { path, copy: true })
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        if self.copy {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
