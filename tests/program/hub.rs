//! Hub names: the cache, a download from a small hub on loopback, and everything that can go wrong on the way.

use crate::io_support::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const REPO: &str = "someone/tiny";

/// How the hub behaves.
#[derive(Clone, Default)]
struct Behaviour {
    /// Say the whole length of this file, send half of it, hang up.
    cut: Option<&'static str>,
    /// Announce this file as one byte longer than what is sent.
    overstate: Option<&'static str>,
    /// Show the repository only with this token.
    token: Option<&'static str>,
    /// Answer everything with this status.
    status: Option<&'static str>,
}

struct Hub {
    endpoint: String,
    behaviour: Arc<Mutex<Behaviour>>,
    /// "range path", as asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn start(files: HashMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hub = Self {
            endpoint: format!("http://{}", listener.local_addr().unwrap()),
            behaviour: Arc::default(),
            asked: Arc::default(),
        };
        let (behaviour, asked, files) = (hub.behaviour.clone(), hub.asked.clone(), Arc::new(files));
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (behaviour, asked, files) = (behaviour.lock().unwrap().clone(), asked.clone(), files.clone());
                std::thread::spawn(move || serve(stream, &behaviour, &asked, &files));
            }
        });
        hub
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn run(&self, home: &Path, args: &[&str], vars: &[(&str, &str)]) -> Output {
        let mut command = ferret(home);
        command.env_remove("HF_HUB_OFFLINE").env("HF_HOME", home.join("hf")).env("HF_ENDPOINT", &self.endpoint);
        for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy"] {
            command.env_remove(name);
        }
        command.args(args).envs(vars.iter().copied()).output().unwrap()
    }

    fn inspect(&self, home: &Path, vars: &[(&str, &str)]) -> Output {
        self.run(home, &["inspect", "--json", "--model", REPO], vars)
    }
}

fn serve(stream: TcpStream, behaviour: &Behaviour, asked: &Mutex<Vec<String>>, files: &HashMap<String, Vec<u8>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let headers: HashMap<String, String> = lines
        .take_while(|l| !l.is_empty())
        .filter_map(|l| l.split_once(": ").map(|(k, v)| (k.to_lowercase(), v.to_owned())))
        .collect();
    let path = request.split(' ').nth(1).unwrap_or("").to_owned();
    let range = headers.get("range").cloned().unwrap_or_default();
    asked.lock().unwrap().push(format!("{range} {path}"));
    let mut out = stream;
    let mut fail = |status: &str| {
        let _ = write!(out, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    if let Some(status) = behaviour.status {
        return fail(status);
    }
    let wanted = behaviour.token.map(|t| format!("Bearer {t}"));
    if wanted.is_some() && headers.get("authorization") != wanted.as_ref() {
        return fail("401 Unauthorized");
    }
    let Some(name) = path.strip_prefix(&format!("/{REPO}/resolve/main/")) else { return fail("401 Unauthorized") };
    let Some(content) = files.get(name) else { return fail("404 Not Found") };
    let (from, to) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).unwrap_or(("0", ""));
    let from: usize = from.parse().unwrap();
    let to = to.parse().map_or(content.len(), |to: usize| (to + 1).min(content.len()));
    let total = content.len() + usize::from(behaviour.overstate == Some(name));
    let _ = write!(
        out,
        "HTTP/1.1 206 Partial Content\r\nETag: \"{name}-etag\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: {}\r\n\
         Content-Range: bytes {from}-{}/{total}\r\nConnection: close\r\n\r\n",
        to - from,
        to.max(1) - 1,
    );
    let cut = behaviour.cut == Some(name) && to - from > 1;
    let _ = out.write_all(&content[from..if cut { from + (to - from) / 2 } else { to }]);
}

/// The tiny checkpoint with a tokenizer that fits it.
fn files() -> HashMap<String, Vec<u8>> {
    let mut files: HashMap<String, Vec<u8>> = ["config.json", "model.safetensors"]
        .into_iter()
        .map(|n| (n.to_owned(), std::fs::read(tiny().join(n)).unwrap()))
        .collect();
    files.insert("vocab.json".into(), br#"{"a":0,"b":1,"ab":2}"#.to_vec());
    files.insert("merges.txt".into(), b"a b\n".to_vec());
    files
}

fn parameters(output: &Output) -> u64 {
    assert!(output.status.success(), "{}", stderr(output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["tokenizer"], 3);
    json["parameters"].as_u64().unwrap()
}

#[test]
fn a_name_is_downloaded_once() {
    let (hub, home) = (Hub::start(files()), tempfile::tempdir().unwrap());
    let home = home.path();
    let offline = hub.inspect(home, &[("HF_HUB_OFFLINE", "1")]);
    assert_refused("offline", &offline, &[REPO, "config.json", "HF_HUB_OFFLINE"]);
    assert!(hub.asked().is_empty(), "offline asked the network");
    assert!(!home.join("hf").exists(), "offline wrote something");

    assert_eq!(parameters(&hub.inspect(home, &[])), 29728);
    assert!(hub.asked().iter().any(|a| a.contains("model.safetensors")));
    let snapshot = home.join("hf/hub/models--someone--tiny/snapshots").join(COMMIT);
    assert_eq!(std::fs::read(snapshot.join("config.json")).unwrap(), files()["config.json"]);

    // The second run asks nothing, not even for the files that the repository does not have.
    assert_eq!(parameters(&hub.inspect(home, &[])), 29728);
    assert_eq!(hub.asked(), [""; 0]);
    assert_eq!(parameters(&hub.inspect(home, &[("HF_HUB_OFFLINE", "1")])), 29728);
    // HF_HUB_CACHE points elsewhere: a download again.
    let elsewhere = home.join("elsewhere");
    assert_eq!(parameters(&hub.inspect(home, &[("HF_HUB_CACHE", elsewhere.to_str().unwrap())])), 29728);
    assert!(elsewhere.join("models--someone--tiny").exists() && !hub.asked().is_empty());
}

#[test]
fn shards_are_downloaded() {
    let mut files = files();
    let weights = files.remove("model.safetensors").unwrap();
    files.insert("one.safetensors".into(), weights);
    let index =
        r#"{"weight_map":{"transformer.wte.weight":"one.safetensors","transformer.wpe.weight":"one.safetensors"}}"#;
    files.insert("model.safetensors.index.json".into(), index.into());
    let (hub, home) = (Hub::start(files), tempfile::tempdir().unwrap());
    assert_eq!(parameters(&hub.inspect(home.path(), &[])), 29728);
    hub.asked();
    assert_eq!(parameters(&hub.inspect(home.path(), &[])), 29728);
    assert_eq!(hub.asked(), [""; 0]);
}

#[test]
fn the_token_is_sent() {
    let (hub, home) = (Hub::start(files()), tempfile::tempdir().unwrap());
    hub.behaviour.lock().unwrap().token = Some("hf_secret");
    let without = hub.inspect(home.path(), &[]);
    assert_refused("no token", &without, &[REPO, "HF_TOKEN"]);
    let wrong = hub.inspect(home.path(), &[("HF_TOKEN", "hf_other")]);
    assert_refused("wrong token", &wrong, &["HF_TOKEN"]);
    assert!(!stderr(&wrong).contains("hf_other"), "the token is not for the terminal");
    assert_eq!(parameters(&hub.inspect(home.path(), &[("HF_TOKEN", "hf_secret")])), 29728);
    // The file that `hf auth login` leaves does as well.
    let other = tempfile::tempdir().unwrap();
    std::fs::create_dir(other.path().join("hf")).unwrap();
    std::fs::write(other.path().join("hf/token"), "hf_secret\n").unwrap();
    assert_eq!(parameters(&hub.inspect(other.path(), &[])), 29728);
}

#[test]
fn failures_are_told_in_a_sentence() {
    let (hub, home) = (Hub::start(files()), tempfile::tempdir().unwrap());
    let home = home.path();
    let unknown = hub.run(home, &["inspect", "--model", "someone/other"], &[]);
    assert_refused("unknown repository", &unknown, &["someone/other", "no folder of this name", "no such repository"]);
    hub.behaviour.lock().unwrap().status = Some("404 Not Found");
    assert_refused("404", &hub.inspect(home, &[]), &[REPO, "has no config.json"]);
    hub.behaviour.lock().unwrap().status = Some("500 Internal Server Error");
    assert_refused("500", &hub.inspect(home, &[]), &[REPO, "500", "try again"]);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = hub.inspect(home, &[("HF_ENDPOINT", &format!("http://{nobody}"))]);
    assert_refused("nobody there", &refused, &["could not be downloaded"]);
    let path = hub.run(home, &["inspect", "--model", "./someone/tiny"], &[]);
    assert_refused("a path", &path, &["./someone/tiny", "no such folder"]);

    let mut without = files();
    without.remove("model.safetensors");
    without.insert("pytorch_model.bin".into(), vec![0]);
    let bin = Hub::start(without);
    assert_refused("no safetensors", &bin.inspect(home, &[]), &["has no model.safetensors"]);
}

#[test]
fn a_download_that_is_cut_off_is_never_taken_for_the_file() {
    let (hub, home) = (Hub::start(files()), tempfile::tempdir().unwrap());
    let home = home.path();
    hub.behaviour.lock().unwrap().cut = Some("model.safetensors");
    assert_refused("cut off", &hub.inspect(home, &[]), &["model.safetensors", "could not be downloaded"]);
    let offline = hub.inspect(home, &[("HF_HUB_OFFLINE", "1")]);
    assert_refused("cut off, then offline", &offline, &["model.safetensors", "HF_HUB_OFFLINE"]);
    hub.asked();
    *hub.behaviour.lock().unwrap() = Behaviour::default();
    assert_eq!(parameters(&hub.inspect(home, &[])), 29728);
    let half = files()["model.safetensors"].len() / 2;
    let resumed = format!("bytes={half}- /{REPO}/resolve/main/model.safetensors");
    assert!(hub.asked().contains(&resumed), "the half that had arrived is kept");

    let fresh = tempfile::tempdir().unwrap();
    hub.behaviour.lock().unwrap().overstate = Some("model.safetensors");
    assert_refused("a byte short", &hub.inspect(fresh.path(), &[]), &["arrived with 121512 of 121513 bytes"]);
    *hub.behaviour.lock().unwrap() = Behaviour::default();
    assert_eq!(parameters(&hub.inspect(fresh.path(), &[])), 29728);
}
