//! From what `--model` says to a folder: a folder as it is, `embedded` as itself, a hub name by way of the local Hugging Face cache or a
//! download.
//!
//! Environment: `HF_HUB_CACHE` or `HF_HOME`/hub (default `~/.cache/huggingface/hub`), `HF_ENDPOINT`, `HF_TOKEN` (or
//! the token file that `hf auth login` leaves), `HF_HUB_OFFLINE`.
//!
//! What the cache holds is used without asking the network. Files that a repository does not have are remembered in
//! the cache's `.no_exist` folder, as Python's `huggingface_hub` does, so that they are asked for once.

use super::checkpoint::{CONFIG, INDEX, TOKENIZER_FILES, WEIGHTS, shards};
use super::embedded;
use crate::error::{Error, Result};
use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Which files of a repository are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `config.json` alone.
    Config,
    /// The tokenizer's files alone, where there are any.
    Tokenizer,
    /// Config, weights, and the tokenizer where there is one.
    Everything,
}

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

/// The folder that `path_or_name` means, with the files in it that are needed, as far as they exist.
pub fn locate(path_or_name: &str, need: Need) -> Result<PathBuf> {
    if path_or_name == embedded::NAME {
        return Ok(embedded::folder());
    }
    let path = Path::new(path_or_name);
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    if path.exists() {
        return Err(Error::file(path, "is a file, and a model's folder is expected: name the folder it lies in"));
    }
    if !is_hub_name(path_or_name) {
        let what = "there is no such folder (a hub name looks like openai-community/gpt2)";
        return Err(Error::file(path, what));
    }
    fetch(path_or_name, need, &Settings::from_env())
}

/// Refuse a model's folder in which a file that would be read is a link to somewhere else.
///
/// A folder may come from a stranger: a `tokenizer.json` that is a link to a private file would be read, quoted in messages and
/// copied beside whatever is trained from it. Links within the folder are followed, and so is the layout of the Hugging Face cache,
/// `snapshots/COMMIT/FILE` to `blobs/HASH` two folders up.
pub fn must_stay_inside(folder: &Path) -> Result<()> {
    // What is missing or no folder has its own sentence where it is read.
    let (Ok(entries), Ok(own)) = (std::fs::read_dir(folder), folder.canonicalize()) else { return Ok(()) };
    let snapshot = own.parent().filter(|p| p.file_name().is_some_and(|n| n == "snapshots"));
    let blobs = snapshot.and_then(Path::parent).map(|repo| repo.join("blobs"));
    for entry in entries {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        let read = path.extension().is_some_and(|e| e == "json" || e == "txt" || e == "safetensors" || e == "jinja");
        if !read || !path.is_symlink() {
            continue;
        }
        // A link that leads nowhere is missed when it is read.
        let Ok(target) = path.canonicalize() else { continue };
        if !target.starts_with(&own) && !blobs.as_ref().is_some_and(|blobs| target.starts_with(blobs)) {
            let what = "is a link out of the model's folder, and those are not followed: put the file itself there, or name the \
                        folder that it lies in";
            return Err(Error::file(path, what));
        }
    }
    Ok(())
}

/// `name` or `owner/name`, of letters, digits, `-`, `_` and `.`.
pub fn is_hub_name(name: &str) -> bool {
    let part = |p: &str| {
        !p.is_empty()
            && p.len() <= 96
            && !p.starts_with(['.', '-'])
            && !p.ends_with(['.', '-'])
            && p.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.iter().all(|p| part(p)) && !name.ends_with(".safetensors") && !name.ends_with(".json")
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
enum Found {
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
        }
        if need != Need::Config {
            // vocab.json and merges.txt are needed only where tokenizer.json is missing, but are copied along with it.
            for file in TOKENIZER_FILES {
                match self.get(file) {
                    Ok(Found::At(path)) => paths.push(path),
                    Ok(Found::Absent | Found::Offline) => {}
                    // The weights are there: a tokenizer that cannot be reached now is missed when it is used.
                    Err(e) => eprintln!("note: {e}"),
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
            Found::At(path) => return Ok(vec![path]),
            Found::Absent | Found::Offline => {}
        }
        match self.get(INDEX)? {
            Found::At(index) => {
                let mut paths = vec![];
                for shard in shards(&index)? {
                    paths.push(self.required(&shard)?);
                }
                paths.push(index);
                Ok(paths)
            }
            Found::Absent => {
                let what = format!("{}: the repository has no model.safetensors, and only that is read", self.name);
                Err(Error::Hub(what))
            }
            Found::Offline => Err(self.offline(WEIGHTS)),
        }
    }

    fn required(&mut self, file: &str) -> Result<PathBuf> {
        match self.get(file)? {
            Found::At(path) => Ok(path),
            Found::Absent => Err(Error::Hub(format!(
                "{}: {} has no {file} under this name: check the spelling (a folder must exist to be taken as one)",
                self.name, self.settings.endpoint
            ))),
            Found::Offline => Err(self.offline(file)),
        }
    }

    fn offline(&self, file: &str) -> Error {
        Error::Hub(format!(
            "{}: {file} is neither in a folder of this name nor in the cache ({}), and HF_HUB_OFFLINE forbids to download it",
            self.name,
            self.cache.path().display()
        ))
    }

    fn get(&mut self, file: &str) -> Result<Found> {
        if let Some(path) = self.cached.get(file) {
            return Ok(Found::At(path));
        }
        if self.absence(file).is_some_and(|marker| marker.exists()) {
            return Ok(Found::Absent);
        }
        if self.settings.offline {
            return Ok(Found::Offline);
        }
        self.download(file)
    }

    /// Where the cache remembers that the current revision has no `file`.
    fn absence(&self, file: &str) -> Option<PathBuf> {
        let repo = self.cache.path().join(self.repo.folder_name());
        let commit = std::fs::read_to_string(repo.join("refs").join(self.repo.revision())).ok()?;
        Some(repo.join(".no_exist").join(commit.trim()).join(file))
    }

    fn download(&mut self, file: &str) -> Result<Found> {
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
        let bar = Bar::new();
        let size = bar.size.clone();
        match api.download_with_progress(file, bar) {
            Ok(path) => {
                self.check_length(&path, size.load(Ordering::Relaxed), file)?;
                Ok(Found::At(path))
            }
            Err(e) => match status(&e) {
                Some(404) => {
                    if let Some(marker) = self.absence(file) {
                        let _ = marker.parent().map(std::fs::create_dir_all);
                        let _ = std::fs::write(marker, b"");
                    }
                    Ok(Found::Absent)
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

/// Progress on stderr; nothing where that is no terminal.
struct Bar {
    bar: ProgressBar,
    size: Arc<AtomicUsize>,
}

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg:24} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})");
        bar.set_style(style.expect("a valid template"));
        Self { bar, size: Arc::default() }
    }
}

impl Progress for Bar {
    fn init(&mut self, size: usize, filename: &str) {
        self.size.store(size, Ordering::Relaxed);
        self.bar.set_length(size as u64);
        self.bar.set_position(0);
        self.bar.set_message(filename.to_owned());
    }

    fn update(&mut self, size: usize) {
        self.bar.inc(size as u64);
    }

    fn finish(&mut self) {
        self.bar.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        for name in ["gpt2", "openai-community/gpt2", "a_b/c.d-1"] {
            assert!(is_hub_name(name), "{name}");
        }
        for path in ["./gpt2", "/models/gpt2", "a/b/c", "../x", "~/x", "a/", "", "x.safetensors", "a\\b", "a b", "-x"] {
            assert!(!is_hub_name(path), "{path}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_out_of_a_folder_are_refused_and_the_caches_are_followed() {
        use std::os::unix::fs::symlink;
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for dir in ["model", "repo/blobs", "repo/snapshots/c0ffee", "other"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        for file in ["model/real.json", "secret", "repo/blobs/1234", "repo/own.json"] {
            std::fs::write(at(file), "{}").unwrap();
        }
        symlink("real.json", at("model/config.json")).unwrap();
        symlink("nowhere", at("model/vocab.json")).unwrap();
        symlink("../secret", at("model/README.md")).unwrap();
        must_stay_inside(&at("model")).unwrap();
        symlink(at("model"), at("alias")).unwrap();
        must_stay_inside(&at("alias")).unwrap();
        for target in ["../secret".into(), at("secret"), "../repo/blobs/1234".into()] {
            symlink(target, at("model/tokenizer.json")).unwrap();
            let error = must_stay_inside(&at("alias")).unwrap_err().to_string();
            assert!(error.contains("tokenizer.json") && error.contains("is a link out of"), "{error}");
            std::fs::remove_file(at("model/tokenizer.json")).unwrap();
        }
        let cached = at("repo/snapshots/c0ffee");
        symlink("../../blobs/1234", cached.join("config.json")).unwrap();
        must_stay_inside(&cached).unwrap();
        symlink("../../own.json", cached.join("merges.txt")).unwrap();
        assert!(must_stay_inside(&cached).is_err(), "only to the cache's blobs");
        std::fs::remove_file(cached.join("merges.txt")).unwrap();
        // A crafted folder of the cache's shape gains nothing: blobs that are themselves a link lead elsewhere.
        std::fs::create_dir_all(at("fake/snapshots/c0ffee")).unwrap();
        symlink(home.path(), at("fake/blobs")).unwrap();
        symlink("../../blobs/secret", at("fake/snapshots/c0ffee/config.json")).unwrap();
        assert!(must_stay_inside(&at("fake/snapshots/c0ffee")).is_err());
    }

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
