//! The hub itself: what its cache holds, and downloads of what it does not.
//!
//! Environment: `HF_HUB_CACHE` or `HF_HOME`/hub (default `~/.cache/huggingface/hub`), `HF_ENDPOINT`, `HF_TOKEN` (or
//! the token file that `hf auth login` leaves), `HF_HUB_OFFLINE`.
//!
//! What the cache holds is used without asking the network. Files that a repository does not have are remembered in
//! the cache's `.no_exist` folder, as Python's `huggingface_hub` does, so that they are asked for once.

use super::Need;
use crate::error::{Error, Result};
use crate::model::checkpoint::{CONFIG, INDEX, TOKENIZER_FILES, WEIGHTS, shards};
use crate::progress::Progress;
use hf_hub::api::Progress as Download;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the hub is and where its files are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The cache, `.../huggingface/hub`; none where not even a home folder is known.
    pub cache: Option<PathBuf>,
    /// The hub's address.
    pub endpoint: String,
    /// Sent as `Authorization: Bearer`.
    pub token: Option<String>,
    /// Never ask the network.
    pub offline: bool,
}

impl Settings {
    /// From the environment, read through `get`.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| get(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let home = get("HF_HOME").map(PathBuf::from).or_else(|| {
            let caches = get("XDG_CACHE_HOME").map(PathBuf::from);
            let user = get("HOME").or_else(|| get("USERPROFILE")).map(|h| PathBuf::from(h).join(".cache"));
            caches.or(user).map(|c| c.join("huggingface"))
        });
        let cache = get("HF_HUB_CACHE").map(PathBuf::from).or_else(|| home.as_ref().map(|h| h.join("hub")));
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let token_file = get("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| home.map(|h| h.join("token")));
        let token = get("HF_TOKEN").or_else(|| {
            let text = std::fs::read_to_string(token_file?).ok()?;
            Some(text.trim().to_owned()).filter(|t| !t.is_empty())
        });
        let offline = get("HF_HUB_OFFLINE").is_some_and(|v| matches!(&*v.to_lowercase(), "1" | "true" | "yes" | "on"));
        Self { cache, endpoint: endpoint.trim_end_matches('/').to_owned(), token, offline }
    }

    /// From this process's environment.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }
}

/// The snapshot folder of the repository `name`, from the cache or the network.
pub fn fetch(name: &str, need: Need, settings: &Settings) -> Result<PathBuf> {
    let Some(cache_dir) = &settings.cache else {
        let what = format!("{name}: no folder for downloads is known: set HF_HOME");
        return Err(Error::Hub(what));
    };
    let cache = Cache::new(cache_dir.clone());
    let repo = Repo::model(name.to_owned());
    let client = Client { name, settings, cached: cache.repo(repo.clone()), cache, repo, api: None };
    client.run(need)
}

struct Client<'a> {
    name: &'a str,
    settings: &'a Settings,
    cache: Cache,
    cached: CacheRepo,
    repo: Repo,
    api: Option<ApiRepo>,
}

/// What came of asking for one file.
enum Answer {
    At(PathBuf),
    /// The repository has no such file.
    Absent,
    /// Not in the cache, and the network may not be asked.
    Offline,
}

impl Client<'_> {
    fn run(mut self, need: Need) -> Result<PathBuf> {
        let config = self.required(CONFIG)?;
        let folder = config.parent().unwrap_or(Path::new("")).to_owned();
        let mut paths = Vec::new();
        if need == Need::Everything {
            paths.extend(self.weights()?);
            // vocab.json and merges.txt are needed only where tokenizer.json is missing, but are copied along with it.
            for file in TOKENIZER_FILES {
                match self.get(file) {
                    Ok(Answer::At(path)) => paths.push(path),
                    Ok(Answer::Absent | Answer::Offline) => {}
                    // The weights are there: a tokenizer that cannot be reached now is missed when it is used.
                    Err(e) => super::progress().note(&e.to_string()),
                }
            }
        }
        if paths.iter().any(|p| p.parent() != Some(&folder)) {
            let what = format!("{}: the repository changed during the download: run the command again", self.name);
            return Err(Error::Hub(what));
        }
        Ok(folder)
    }

    fn weights(&mut self) -> Result<Vec<PathBuf>> {
        match self.get(WEIGHTS)? {
            Answer::At(path) => return Ok(vec![path]),
            Answer::Absent | Answer::Offline => {}
        }
        match self.get(INDEX)? {
            Answer::At(index) => {
                let mut paths = vec![];
                for shard in shards(&index)? {
                    paths.push(self.required(&shard)?);
                }
                paths.push(index);
                Ok(paths)
            }
            Answer::Absent => {
                let what = format!("{}: the repository has no model.safetensors, and only that is read", self.name);
                Err(Error::Hub(what))
            }
            Answer::Offline => Err(self.offline(WEIGHTS)),
        }
    }

    fn required(&mut self, file: &str) -> Result<PathBuf> {
        match self.get(file)? {
            Answer::At(path) => Ok(path),
            Answer::Absent => Err(Error::Hub(format!(
                "{}: {} has no {file} under this name: check the spelling (a folder must exist to be taken as one)",
                self.name, self.settings.endpoint
            ))),
            Answer::Offline => Err(self.offline(file)),
        }
    }

    fn offline(&self, file: &str) -> Error {
        Error::Hub(format!(
            "{}: {file} is neither in a folder of this name nor in the cache ({}), and HF_HUB_OFFLINE forbids to download it",
            self.name,
            self.cache.path().display()
        ))
    }

    fn get(&mut self, file: &str) -> Result<Answer> {
        if let Some(path) = self.cached.get(file) {
            return Ok(Answer::At(path));
        }
        if self.absence(file).is_some_and(|marker| marker.exists()) {
            return Ok(Answer::Absent);
        }
        if self.settings.offline {
            return Ok(Answer::Offline);
        }
        self.download(file)
    }

    /// Where the cache remembers that the current revision has no `file`.
    fn absence(&self, file: &str) -> Option<PathBuf> {
        let repo = self.cache.path().join(self.repo.folder_name());
        let commit = std::fs::read_to_string(repo.join("refs").join(self.repo.revision())).ok()?;
        Some(repo.join(".no_exist").join(commit.trim()).join(file))
    }

    fn download(&mut self, file: &str) -> Result<Answer> {
        if self.api.is_none() {
            let api = ApiBuilder::from_cache(self.cache.clone())
                .with_endpoint(self.settings.endpoint.clone())
                .with_token(self.settings.token.clone())
                .with_user_agent("ferret", env!("CARGO_PKG_VERSION"))
                .build()
                .map_err(|e| Error::Hub(format!("{}: {e}", self.name)))?;
            self.api = Some(api.repo(self.repo.clone()));
        }
        let api = self.api.as_ref().expect("just made");
        let size = Arc::<AtomicUsize>::default();
        match api.download_with_progress(file, Listener { progress: super::progress(), size: size.clone() }) {
            Ok(path) => {
                self.check_length(&path, size.load(Ordering::Relaxed), file)?;
                Ok(Answer::At(path))
            }
            Err(e) => match status(&e) {
                Some(404) => {
                    if let Some(marker) = self.absence(file) {
                        let _ = marker.parent().map(std::fs::create_dir_all);
                        let _ = std::fs::write(marker, b"");
                    }
                    Ok(Answer::Absent)
                }
                Some(401 | 403) => Err(Error::Hub(format!(
                    "{}: there is no folder of this name, and {} has no such repository or does not show it to you \
                     (asked for {file}): check the spelling, or set HF_TOKEN",
                    self.name, self.settings.endpoint
                ))),
                _ => Err(Error::Hub(format!(
                    "{}: {file} could not be downloaded from {} ({e}): try again, or name a local folder",
                    self.name, self.settings.endpoint
                ))),
            },
        }
    }

    /// A download that ended early, or was resumed against a server that starts over, must not stay in the cache.
    fn check_length(&self, path: &Path, expected: usize, file: &str) -> Result<()> {
        let found = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.len();
        if found == expected as u64 {
            return Ok(());
        }
        if let Ok(blob) = path.canonicalize() {
            let _ = std::fs::remove_file(blob);
        }
        let _ = std::fs::remove_file(path);
        Err(Error::Hub(format!(
            "{}: {file} arrived with {found} of {expected} bytes: run the command again",
            self.name
        )))
    }
}

/// The HTTP status in an error of hf-hub, which hands it on only in words.
fn status(error: &ApiError) -> Option<u16> {
    let ApiError::RequestError(e) = error else { return None };
    let text = e.to_string();
    text.strip_prefix("http status: ")?.parse().ok()
}

/// A download as [`Progress`] hears of it, and the length that the hub announced.
struct Listener {
    progress: &'static dyn Progress,
    size: Arc<AtomicUsize>,
}

impl Download for Listener {
    fn init(&mut self, size: usize, filename: &str) {
        self.size.store(size, Ordering::Relaxed);
        self.progress.begin(filename, size as u64);
    }

    fn update(&mut self, size: usize) {
        // hf-hub has no way to stop: whoever wants to ends the process, and what arrived is taken up next time.
        let _ = self.progress.advance(size as u64);
    }

    fn finish(&mut self) {
        self.progress.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_honoured() {
        let vars = |list: &'static [(&str, &str)]| {
            Settings::from_vars(move |name| list.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string()))
        };
        let plain = vars(&[("HOME", "/home/me")]);
        assert_eq!(plain.cache, Some("/home/me/.cache/huggingface/hub".into()));
        assert_eq!((plain.endpoint.as_str(), plain.offline), ("https://huggingface.co", false));
        let all = vars(&[
            ("HF_HOME", "/hf"),
            ("HF_ENDPOINT", "http://localhost:1/"),
            ("HF_TOKEN", " secret\n"),
            ("HF_HUB_OFFLINE", "1"),
        ]);
        assert_eq!(all.cache, Some("/hf/hub".into()));
        assert_eq!(
            (all.endpoint.as_str(), all.token.as_deref(), all.offline),
            ("http://localhost:1", Some("secret"), true)
        );
        assert_eq!(vars(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]).cache, Some("/c".into()));
    }
}
