//! `transcript.json`: a run, whole, in a few lines of text.
//!
//! ```text
//! {
//!   "format": "ferret transcript",
//!   "version": 2,
//!   "base_sha256": "…",        SHA-256 of the base model's tensors
//!   "tuned_sha256": "…",       of the tuned model's; null while the run is unfinished
//!   "settings": { … },         see Settings: budget, sizes, optimizer, seed, …
//!   "steps_run": 1000,         how many of the settings' steps were made
//!   "fires": 144,              how many (step, group) fired; which ones follows from the seed
//!   "bits": "+--+-…",          one sign a fire, ordered by step, then by group
//!   "scalars": [ … ],          in place of bits where noisy scalars were released
//!   "checksum": "…"            SHA-256 of this object, compact, with an empty checksum
//! }
//! ```
//!
//! The checksum finds slips and careless edits; it is no signature. What cannot be forged without finding another run is the tuned
//! model's hash. Sizes and hashes have names that say what they are; numbers are read back to the last bit.
//!
//! Files of every version are read for ever, and the newest is written. A field that a later version adds has a default that means what
//! its absence meant. Version 1 also stored what follows from the settings (steps, sampling rate, p), and no micro-batch.

use super::settings::{Payload, Release, Settings};
use crate::error::{Error, Result};
use crate::hash::sha256;
pub use crate::method::transcript::FILE;
use crate::method::transcript::{self, changed, check_signs, checksum, contradiction};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

pub(in crate::method) const FORMAT: &str = "ferret transcript";
const VERSION: u32 = 2;

/// What was released, in the order of the fires.
#[derive(Clone, Debug, PartialEq)]
pub enum Releases {
    /// +1 or -1 a fire.
    Bits(Vec<i8>),
    /// A noisy scalar a fire.
    Scalars(Vec<f32>),
}

impl Releases {
    /// Numbers released: one a fire.
    pub fn len(&self) -> usize {
        match self {
            Releases::Bits(b) => b.len(),
            Releases::Scalars(s) => s.len(),
        }
    }

    /// Whether nothing was released.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A run of FERRET.
pub type Transcript = transcript::Transcript<Settings, Releases>;

/// The file, field by field.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u32,
    base_sha256: String,
    tuned_sha256: Option<String>,
    settings: Settings,
    steps_run: u32,
    fires: u64,
    bits: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    scalars: Vec<f32>,
    checksum: String,
}

impl File {
    fn checksum(&self) -> String {
        let bare = Self { checksum: String::new(), ..self.clone() };
        sha256(serde_json::to_string(&bare).expect("strings and numbers"))
    }

    /// Whether the checksum fits: that of the fields `read`, as they stand in the text, so that a field which this program writes and
    /// an earlier one did not know changes nothing; or that of the fields as this program writes them.
    fn is_whole(&self, read: Value) -> bool {
        [checksum(read), self.checksum()].contains(&self.checksum)
    }
}

/// Steps of the grid from 0 to C on which noisy scalars are released.
pub const GRID: f64 = 1024.0;

/// `x` in units of C, as it is released: on a public grid. A sum of a sign and a noise in floating point shows in its lowest bits which sign it
/// was; its place on a grid far coarser than both does not, and rounding what is private keeps it so.
pub fn on_grid(x: f64, clip: f64) -> f32 {
    (clip * ((x * GRID).round() / GRID)) as f32
}

impl Transcript {
    /// The fires (step, group) of the run, in order.
    pub fn fires(&self) -> Vec<(u32, u32)> {
        self.settings.fires(self.steps_run)
    }

    /// Whether the parts agree: settings with each other, releases with the fires that the seed draws.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::usage(what));
        self.check_run(Settings::check, Settings::steps)?;
        match (&self.releases, self.settings.release) {
            (Releases::Bits(bits), Release::Bit | Release::Rr { .. }) => check_signs(bits)?,
            (Releases::Scalars(scalars), Release::Gaussian { .. }) => {
                let clip = self.settings.clip;
                if let Some(x) = scalars.iter().find(|&&x| !(x.is_finite() && on_grid(f64::from(x) / clip, clip) == x))
                {
                    return refuse(format!(
                        "the scalar {x} was released, expected a finite multiple of C / {GRID}, as this program releases them"
                    ));
                }
            }
            (Releases::Bits(_), _) => return refuse("bits were released where settings say scalars".into()),
            (Releases::Scalars(_), _) => return refuse("scalars were released where settings say bits".into()),
        }
        let listed = self.releases.len() as u64;
        if self.settings.payload != Payload::Sign {
            // The ablation's payload is no release: its gradients are in no transcript.
            return if listed == 0 { Ok(()) } else { refuse(format!("{listed} releases are listed, expected none")) };
        }
        self.fires_are(listed).or_else(|made| {
            refuse(format!(
                "{listed} releases are listed, but seed and settings make {made} fires in {} steps",
                self.steps_run
            ))
        })
    }

    /// Whether the run has so many fires; if not, how many. They are counted, not stored, and no further than the first one too many:
    /// a few bytes of settings can name more than any memory holds.
    fn fires_are(&self, count: u64) -> std::result::Result<(), String> {
        match self.settings.count_fires(self.steps_run, count) {
            made if made == count => Ok(()),
            made if made < count => Err(made.to_string()),
            _ => Err(format!("more than {count}")),
        }
    }

    /// The file's text.
    pub fn to_json(&self) -> Result<String> {
        self.check()?;
        let (bits, scalars) = match &self.releases {
            Releases::Bits(bits) => (bits.iter().map(|&b| if b == 1 { '+' } else { '-' }).collect(), Vec::new()),
            Releases::Scalars(scalars) => (String::new(), scalars.clone()),
        };
        let mut file = File {
            format: FORMAT.into(),
            version: VERSION,
            base_sha256: self.base_sha256.clone(),
            tuned_sha256: self.tuned_sha256.clone(),
            settings: self.settings.clone(),
            steps_run: self.steps_run,
            fires: match self.settings.payload {
                Payload::Sign => self.releases.len() as u64,
                Payload::TrueGradient => self.settings.count_fires(self.steps_run, u64::MAX),
            },
            bits,
            scalars,
            checksum: String::new(),
        };
        file.checksum = file.checksum();
        Ok(serde_json::to_string_pretty(&file).expect("strings and numbers") + "\n")
    }

    /// Read [`Transcript::to_json`]'s text. `path` is for messages.
    pub fn from_json(text: &str, path: &Path) -> Result<Self> {
        let refuse = |what: String| Err(Error::file(path, what));
        let (head, file): (Value, File) = transcript::read(text, path, FORMAT, VERSION)?;
        // What a reader of the file sees is what is replayed: 1e-310 would be 0 in single precision.
        let written = head["scalars"].as_array().into_iter().flatten();
        let number = |x: &f32| serde_json::to_string(x).ok().and_then(|text| text.parse::<f64>().ok());
        if let Some((_, written)) = file.scalars.iter().zip(written).find(|(x, w)| w.as_f64() != number(x)) {
            return refuse(format!(
                "scalars contains {written}, which is not a number in single precision as it is written"
            ));
        }
        let releases = match file.settings.release {
            Release::Gaussian { .. } if file.bits.is_empty() => Releases::Scalars(file.scalars.clone()),
            Release::Gaussian { .. } => return refuse("lists bits, but its settings release scalars".into()),
            _ if !file.scalars.is_empty() => return refuse("lists scalars, but its settings release bits".into()),
            _ => {
                let sign = |c| match c {
                    '+' => Ok(1),
                    '-' => Ok(-1),
                    _ => Err(Error::file(path, format!("bits contains {c:?}, expected + and - only"))),
                };
                Releases::Bits(file.bits.chars().map(sign).collect::<Result<_>>()?)
            }
        };
        let transcript = Self {
            base_sha256: file.base_sha256.clone(),
            tuned_sha256: file.tuned_sha256.clone(),
            settings: file.settings.clone(),
            steps_run: file.steps_run,
            releases,
        };
        transcript.check().map_err(|e| contradiction(path, e))?;
        if let Err(made) = transcript.fires_are(file.fires) {
            return Err(contradiction(path, format!("fires is {}, seed and settings make {made}", file.fires)));
        }
        if !file.is_whole(head) {
            return Err(changed(path));
        }
        Ok(transcript)
    }
}
