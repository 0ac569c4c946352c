//! The flags of shadow models.

use crate::cli::{flags, ranks};
use crate::data::Example;
use crate::error::Result;
use crate::measure::shadow::{Changes, Knowledge, Plan, Shadows, Store};
use crate::measure::{Cache, Pair, ReadAs};
use std::path::PathBuf;

/// LiRA and RMIA.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Shadow models (LiRA, RMIA)")]
pub(super) struct ShadowArgs {
    /// Train K shadow models
    ///
    /// Online (without --shadow-data, or with --shadow-online): on random halves of all candidates, so that each is in half of the models.
    #[arg(long, value_name = "K", default_value_t = 0)]
    shadows: usize,
    /// Records of the same source that are no candidates
    ///
    /// Shadow models are trained on them, and a fifth is RMIA's population.
    #[arg(long, value_name = "FILE", requires = "shadows")]
    shadow_data: Option<PathBuf>,
    /// With --shadow-data: train on the candidates too, as the strongest attack does
    #[arg(long, requires = "shadow_data")]
    shadow_online: bool,
    /// ferret-max, ferret-half, ferret-quarter, ferret-eighth, ferret-2, nonprivate, dpsgd, dp-signsgd, signsgd or qsgd [default: the
    /// audited run's own method, with the settings that its folder tells, else nonprivate]
    #[arg(long, value_name = "METHOD")]
    shadow_method: Option<String>,
    /// FERRET's budget in nats [default: the audited run's, else 0.5]
    #[arg(long, value_name = "NATS")]
    shadow_epsilon: Option<f64>,
    /// DPSGD's noise over its clipping bound [default: the audited run's]
    #[arg(long, value_name = "SIGMA")]
    shadow_noise_multiplier: Option<f64>,
    /// Passes over the records [default: the audited run's, else 1]
    #[arg(long, value_name = "N")]
    shadow_epochs: Option<u32>,
    /// Expected batch size [default: the audited run's, else 50]
    #[arg(long, value_name = "N")]
    shadow_batch: Option<u64>,
    /// Peak learning rate [default: the audited run's, else the paper's]
    #[arg(long, value_name = "RATE")]
    shadow_learning_rate: Option<f64>,
    /// Seed of who is trained on what
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    shadow_seed: u64,
    /// Shadow models trained at once [default: as many as threads, if their memory stays below 2 GiB; else one, with all threads]
    #[arg(long, value_name = "N")]
    shadow_jobs: Option<usize>,
    /// A folder that keeps whole shadow models by the hash of their settings and records, for audits of other records too [default:
    /// the audit's cache keeps what they say about these records, and FERRET's transcripts]
    #[arg(long, value_name = "FOLDER")]
    shadow_cache: Option<PathBuf>,
}

impl ShadowArgs {
    /// The plan, or none where no shadow models are asked for.
    pub fn plan(
        &self,
        pair: &mut Pair,
        members: &[Example],
        nonmembers: &[Example],
        read_as: ReadAs,
        known: Knowledge,
        cache: &Cache,
    ) -> Result<Option<Plan>> {
        if self.shadows == 0 {
            return Ok(None);
        }
        let shadows = Shadows {
            count: self.shadows,
            others: self.shadow_data.as_ref().map(|path| pair.records(path, read_as)).transpose()?,
            online: self.shadow_online,
            method: self.shadow_method.clone(),
            changes: Changes {
                epsilon: self.shadow_epsilon,
                noise_multiplier: self.shadow_noise_multiplier,
                batch: self.shadow_batch,
                epochs: self.shadow_epochs,
                learning_rate: self.shadow_learning_rate,
            },
            seed: self.shadow_seed,
            jobs: self.shadow_jobs,
            store: match (&self.shadow_cache, cache.dir()) {
                _ if !ranks::is_first() => Store::elsewhere(self.shadow_cache.is_some()),
                (Some(dir), _) => Store::at(dir)?,
                (None, Some(dir)) => Store::light(&dir.join("shadows"))?,
                (None, None) => Store::none(),
            },
        };
        let (plan, note) = shadows.plan(&pair.base.weights, members, nonmembers, known)?;
        pair.notes.extend(note.map(|note| flags::spell(&note)));
        Ok(Some(plan))
    }
}
