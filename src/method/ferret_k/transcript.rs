//! `transcript.json` of FERRET-k: a run, whole, in a few lines of text and k bits a step.
//!
//! ```text
//! {
//!   "format": "ferret-k transcript",
//!   "version": 1,              2 with levels, 3 with scales
//!   "base_sha256": "…",        SHA-256 of the base model's tensors
//!   "tuned_sha256": "…",       of the tuned model's; null while the run is unfinished
//!   "settings": { … },         see Settings
//!   "steps_run": 96,           how many of the settings' steps were made
//!   "fires": 96,               how many of them computed something; which ones follows from the seed
//!   "signs": "q83Z…",          base64 of fires x k bits, step after step, bucket after bucket, the first in a byte's lowest bit, 1 for plus
//!   "levels": "5Bsk…",         in place of signs: base64 of fires x k codes of two bits, laid out as signs are: 1 for plus, 2 more for the upper level
//!   "sizes": "rQgA…",          beside levels: base64 of fires integers of 32 bits, the lowest byte first, in units of C / 1024
//!   "scalars": "AAQA…",        in place of signs: base64 of fires x k integers, as sizes are
//!   "checksum": "…"            SHA-256 of this object, compact, with an empty checksum
//! }
//! ```
//!
//! The checksum finds slips and careless edits; it is no signature. What cannot be forged without finding another run is the tuned
//! model's hash.

use super::levels::{self, Levels};
use super::packed::{pack_codes, pack_numbers, pack_signs, unpack_codes, unpack_numbers, unpack_signs};
use super::settings::{Release, Settings};
use crate::error::{Error, Result};
use crate::method::ferret::transcript::GRID;
use crate::method::transcript::{self, changed, check_signs, checksum, contradiction};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

pub(in crate::method) const FORMAT: &str = "ferret-k transcript";
/// The newest. Files of signs and of scalars are of version 1, which has no levels, and those of levels of version 2, which has no scales on U: they are
/// the bytes that they always were.
const VERSION: u32 = 3;

/// The version of a file with such settings.
fn version(settings: &Settings) -> u32 {
    match (&settings.scales, settings.release) {
        (Some(_), _) => VERSION,
        (None, Release::Level) => 2,
        (None, Release::Sign | Release::Scalar) => 1,
    }
}

/// What was released, step after step, k of them each.
#[derive(Clone, Debug, PartialEq)]
pub enum Releases {
    /// +1 or -1.
    Signs(Vec<i8>),
    /// Levels, and a size a step.
    Levels(Levels),
    /// Sums in units of C / 1024.
    Scalars(Vec<i32>),
}

impl Releases {
    /// None yet, of what `release` names.
    pub fn none(release: Release) -> Self {
        match release {
            Release::Sign => Self::Signs(Vec::new()),
            Release::Level => Self::Levels(Levels::default()),
            Release::Scalar => Self::Scalars(Vec::new()),
        }
    }

    /// Numbers released: k a computed step.
    pub fn len(&self) -> usize {
        match self {
            Self::Signs(s) => s.len(),
            Self::Levels(l) => l.codes.len(),
            Self::Scalars(s) => s.len(),
        }
    }

    /// Whether nothing was released.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether they are those of whole steps of k numbers.
    pub fn is_whole(&self, k: usize) -> bool {
        let sized = |l: &Levels| l.sizes.len() == l.codes.len() / k;
        self.len().is_multiple_of(k) && if let Self::Levels(l) = self { sized(l) } else { true }
    }

    /// Add what a step released, of the same kind.
    pub(super) fn extend(&mut self, step: Self) {
        match (self, step) {
            (Self::Signs(all), Self::Signs(own)) => all.extend(own),
            (Self::Levels(all), Self::Levels(own)) => {
                all.sizes.extend(own.sizes);
                all.codes.extend(own.codes);
            }
            (Self::Scalars(all), Self::Scalars(own)) => all.extend(own),
            _ => unreachable!("releases are of the kind the settings name"),
        }
    }

    /// Bits that they take.
    pub fn bits(&self) -> u64 {
        match self {
            Self::Signs(s) => s.len() as u64,
            Self::Levels(l) => u64::from(levels::BITS) * l.codes.len() as u64 + 32 * l.sizes.len() as u64,
            Self::Scalars(s) => 32 * s.len() as u64,
        }
    }

    /// The k numbers of the i-th computed step: signs, or levels or scalars in units of C.
    pub fn numbers(&self, i: usize, k: usize) -> Vec<f32> {
        match self {
            Self::Signs(s) => s[i * k..][..k].iter().map(|&s| f32::from(s)).collect(),
            Self::Levels(l) => l.numbers(i, k),
            Self::Scalars(s) => s[i * k..][..k].iter().map(|&s| (f64::from(s) / GRID) as f32).collect(),
        }
    }
}

/// The place of `x`, a sum in units of C, on the public grid. What is beyond 32 bits stays at their end.
pub fn on_grid(x: f64) -> i32 {
    (x * GRID).round() as i32
}

/// A run of FERRET-k.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signs: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    levels: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sizes: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scalars: Option<String>,
    checksum: String,
}

impl Transcript {
    /// The steps of the run that computed something, in order.
    pub fn fires(&self) -> Vec<u32> {
        self.settings.fires(self.steps_run)
    }

    /// Whether the parts agree: settings with each other, releases with the steps that the seed draws.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::usage(what));
        self.check_run(Settings::check, Settings::steps)?;
        match (&self.releases, self.settings.release) {
            (Releases::Signs(signs), Release::Sign) => check_signs(signs)?,
            (Releases::Levels(levels), Release::Level) => levels.check(self.settings.k())?,
            (Releases::Scalars(_), Release::Scalar) => {}
            (_, said) => return refuse(format!("what was released is not what settings say: {said:?}")),
        }
        let (listed, k) = (self.releases.len() as u64, self.settings.k() as u64);
        match self.settings.count_fires(self.steps_run, listed / k) {
            made if made * k == listed => Ok(()),
            made => refuse(format!(
                "{listed} releases are listed, but seed and settings make {} steps of {k}",
                if made > listed / k { format!("more than {}", listed / k) } else { made.to_string() }
            )),
        }
    }

    /// The file's text.
    pub fn to_json(&self) -> Result<String> {
        self.check()?;
        let mut file = File {
            format: FORMAT.into(),
            version: version(&self.settings),
            base_sha256: self.base_sha256.clone(),
            tuned_sha256: self.tuned_sha256.clone(),
            settings: self.settings.clone(),
            steps_run: self.steps_run,
            fires: self.releases.len() as u64 / u64::from(self.settings.bits_per_step),
            signs: None,
            levels: None,
            sizes: None,
            scalars: None,
            checksum: String::new(),
        };
        match &self.releases {
            Releases::Signs(signs) => file.signs = Some(pack_signs(signs)),
            Releases::Levels(Levels { sizes, codes }) => {
                (file.levels, file.sizes) = (Some(pack_codes(codes, levels::BITS)), Some(pack_numbers(sizes)));
            }
            Releases::Scalars(scalars) => file.scalars = Some(pack_numbers(scalars)),
        }
        let mut value = serde_json::to_value(&file).expect("strings and numbers");
        value["checksum"] = checksum(value.clone()).into();
        Ok(serde_json::to_string_pretty(&value).expect("strings and numbers") + "\n")
    }

    /// Read [`Transcript::to_json`]'s text. `path` is for messages.
    pub fn from_json(text: &str, path: &Path) -> Result<Self> {
        let refuse = |what: String| Err(Error::file(path, what));
        let (head, file): (Value, File) = transcript::read(text, path, FORMAT, VERSION)?;
        file.settings.check().map_err(|e| contradiction(path, e))?;
        if file.version != version(&file.settings) {
            return refuse(format!("has version {}, which is not that of its settings", file.version));
        }
        let count = file.fires.saturating_mul(file.settings.bits_per_step.into());
        let broken = |name: &'static str| move |e: String| Error::file(path, format!("{name}: {e}"));
        let listed = (&file.signs, &file.levels, &file.sizes, &file.scalars);
        let releases = match (file.settings.release, listed) {
            (Release::Sign, (Some(signs), None, None, None)) => {
                Releases::Signs(unpack_signs(signs, count).map_err(broken("signs"))?)
            }
            (Release::Level, (None, Some(codes), Some(sizes), None)) => Releases::Levels(Levels {
                sizes: unpack_numbers(sizes, file.fires).map_err(broken("sizes"))?,
                codes: unpack_codes(codes, count, levels::BITS).map_err(broken("levels"))?,
            }),
            (Release::Scalar, (None, None, None, Some(scalars))) => {
                Releases::Scalars(unpack_numbers(scalars, count).map_err(broken("scalars"))?)
            }
            (release, _) => {
                let what = match release {
                    Release::Sign => "signs",
                    Release::Level => "levels and sizes",
                    Release::Scalar => "scalars",
                };
                return refuse(format!("lists other things than {what}, which its settings release"));
            }
        };
        let transcript = Self {
            base_sha256: file.base_sha256,
            tuned_sha256: file.tuned_sha256,
            settings: file.settings,
            steps_run: file.steps_run,
            releases,
        };
        transcript.check().map_err(|e| contradiction(path, e))?;
        if file.checksum != checksum(head) {
            return Err(changed(path));
        }
        Ok(transcript)
    }
}
